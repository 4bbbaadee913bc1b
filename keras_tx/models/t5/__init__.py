"""The T5 family."""
