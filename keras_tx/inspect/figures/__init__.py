"""Figures of attention and similarity, drawn with matplotlib (pip install "keras-tx[inspect]")."""
