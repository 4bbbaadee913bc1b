"""The Transformer family."""
