"""The model families: a config dataclass, a table of variants and a functional factory each."""
