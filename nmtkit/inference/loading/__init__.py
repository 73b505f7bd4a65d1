"""Opens the model of a run: its options, the languages, the precision, and the fastest settings of this machine."""
