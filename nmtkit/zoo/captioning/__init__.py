"""Captions of pictures: task, two models, and a metric."""
