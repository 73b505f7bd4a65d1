"""Commands that train models and manage runs."""
