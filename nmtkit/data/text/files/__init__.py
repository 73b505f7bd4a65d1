"""Turns the bytes of a file into lines of text: compression, encodings, formats and columns."""
