"""Search for good translations with any model: beam search, rules, penalties, sampling."""
