"""Implementation of the commands that train models and manage runs."""
