"""Tensor files, tensor maps and the assignment of tensors to variables, for any family."""
