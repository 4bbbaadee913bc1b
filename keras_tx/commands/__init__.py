"""The commands of `keras-tx`, one a file. Importing them loads nothing heavy: that happens in `execute`."""
