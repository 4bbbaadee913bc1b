"""Inputs, outputs and files of the exported folder, for each kind of model."""
