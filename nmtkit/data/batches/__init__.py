"""Batches of a stored split, in the order in which training and validation read them."""
