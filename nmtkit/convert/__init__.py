"""Imports models of other toolkits and exports models to them."""
