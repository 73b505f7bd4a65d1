"""Training of models: the loop, losses, optimizers, schedules."""
