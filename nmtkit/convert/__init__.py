"""Models of other toolkits, in and out."""
