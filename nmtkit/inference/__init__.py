"""Text to text with any model: translations, summaries, and the attention behind them."""
