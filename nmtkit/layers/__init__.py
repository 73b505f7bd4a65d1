"""Layers and tensor functions. They read and return plain tensors, and do not depend on batches, models or recipes."""
