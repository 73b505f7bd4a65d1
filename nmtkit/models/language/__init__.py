"""Language models and other models that are trained on plain text, one file per paper."""
