"""Reads text files and turns them into checked examples, without using tensors."""
