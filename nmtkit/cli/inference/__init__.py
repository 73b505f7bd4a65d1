"""Implementation of the commands that use a trained model."""
