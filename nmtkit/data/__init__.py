"""From text to batches of ids: vocabulary, tokenizer, corpus, store, batch."""
