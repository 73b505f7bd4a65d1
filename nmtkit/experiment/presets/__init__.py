"""A recipe proposed from a text, from minutes, or from a run to fine-tune."""
