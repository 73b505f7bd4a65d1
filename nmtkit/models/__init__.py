"""One file per paper; importing this package registers every model."""
