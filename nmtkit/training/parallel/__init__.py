"""Several processes as one training."""
