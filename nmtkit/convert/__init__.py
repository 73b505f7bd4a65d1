"""Imports models from other toolkits, and exports models to them."""
