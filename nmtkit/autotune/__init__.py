"""Measures the fastest settings of this machine, and caches them."""
