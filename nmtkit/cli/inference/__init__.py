"""The work of the commands that use a trained model."""
