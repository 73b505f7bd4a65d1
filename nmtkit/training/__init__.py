"""Fitting any model: the loop, losses, optimizers, schedules."""
