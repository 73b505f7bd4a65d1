"""Tasks: what a recipe can train a model for."""
