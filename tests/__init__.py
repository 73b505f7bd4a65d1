"""Tests, what they share (`tests.support`), and tools that are no tests (`tests.tools`)."""
