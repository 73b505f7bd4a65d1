"""Pure tensors in, tensors out: no batch, no memory, no recipe."""
