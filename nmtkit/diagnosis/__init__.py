"""The data doctor: what is wrong with a corpus, where, and what to do about it; before anything is trained."""
