"""Hostile input and violent ends: drawn cases under one oracle, processes that are killed, memory over much input."""
