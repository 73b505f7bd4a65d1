"""Limits of settings and options that the command line needs before it loads the settings."""

MAX_INT = 2**53 - 1
"""Largest integer allowed in any setting; JSON and floats represent integers up to this one exactly."""
MAX_THREADS = 1024
"""Maximum number of CPU threads, far above the number of cores of any machine."""
