"""Losses and pretraining objectives by name."""
