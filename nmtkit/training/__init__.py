"""Fitting any model: the loop, losses, schedules, checkpoints."""
