"""From text files to checked examples; no tensors."""
