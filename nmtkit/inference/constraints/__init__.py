"""Requests: source lines with constraints on their translations, such as a prefix, required terms or a glossary."""
