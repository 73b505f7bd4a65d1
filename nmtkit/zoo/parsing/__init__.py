"""Constituency parsing as translation: task, trees, the rule of the search, metrics, and commands."""
