"""Image captioning: the task, two models and a metric."""
