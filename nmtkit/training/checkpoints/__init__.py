"""Checkpoints: files of tensors, weights of models, and the checkpoint folder of a run."""
