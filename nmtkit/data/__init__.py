"""Turns text into batches of ids: text files, tokenizers, stored arrays, batches."""
