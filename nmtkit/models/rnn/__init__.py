"""Models whose decoder is a recurrent network, one file per paper."""
