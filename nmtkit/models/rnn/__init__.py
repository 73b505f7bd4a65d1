"""Models that write with recurrent networks, one file per paper."""
