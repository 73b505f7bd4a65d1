"""Random choice of words and constructions, never how they are inflected or aligned."""
