"""The way between our models and other people's checkpoints and configs."""
