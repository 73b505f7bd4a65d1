"""Checkpoints: tensor files, model weights, and the checkpoint folder of a run."""
