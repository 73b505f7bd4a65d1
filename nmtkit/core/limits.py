"""Bounds of settings and options; the command line needs them before it loads settings."""

MAX_INT = 2**53 - 1
"""The largest whole number of any setting; up to here JSON and a float hold each one exactly."""
MAX_THREADS = 1024
"""The most CPU threads; no machine has more cores by far."""
