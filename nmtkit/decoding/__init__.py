"""Finding good translations under any model: beam search, rules, penalties, sampling."""
