"""Measuring: how fast a trained model translates, beside engines of others, and how fast a recipe trains."""
