"""The data check, which finds problems in a corpus before training and reports their places and remedies."""
