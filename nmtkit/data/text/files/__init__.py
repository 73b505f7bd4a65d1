"""From the bytes of a file to lines of text: compression, encodings, formats, columns."""
