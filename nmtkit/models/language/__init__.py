"""Models of running text, one file per paper."""
