"""The data check: the faults of a corpus, their places and remedies, before a model is trained."""
