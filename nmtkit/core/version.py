"""The version, which rooms below the package's door can read too."""

__version__ = "0.1.0"
