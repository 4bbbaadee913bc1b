"""The engine of text generation: many streams, which join and leave between any two decode steps."""
