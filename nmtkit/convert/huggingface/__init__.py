"""Public models, from the folders that `transformers` writes: one file per family."""
