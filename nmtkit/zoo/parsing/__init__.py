"""Constituency parsing as translation: task, trees, search rule, metrics and commands."""
