"""The data check finds faults of a corpus, with places and remedies, before training."""
