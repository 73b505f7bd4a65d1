"""Text to text with any model: translations, summaries, what was looked at for them."""
