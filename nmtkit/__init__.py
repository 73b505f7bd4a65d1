"""nmtkit: neural machine translation and summarization in PyTorch."""

__version__ = "0.1.0"
