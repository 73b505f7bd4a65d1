"""Checkpoints: files of tensors, weights of models, and the folder in which a training keeps them."""
