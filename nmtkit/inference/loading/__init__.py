"""Opens a run's model for inference: options, languages, precision, engines, and speed settings."""
