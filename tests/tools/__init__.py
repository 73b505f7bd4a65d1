"""Programs for developers: benchmarks, hostile input, other machines, measures of the source."""
