"""Low-rank adapters of a model, saved and loaded in the format of PEFT."""
