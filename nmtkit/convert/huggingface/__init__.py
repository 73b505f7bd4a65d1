"""Imports public models from `transformers` folders; one file per family."""
