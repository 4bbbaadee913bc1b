"""The tasks of exported folders."""
