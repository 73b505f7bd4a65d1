"""Tokenizers, and the vocabularies that they share."""
