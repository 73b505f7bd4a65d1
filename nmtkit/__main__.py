"""`python -m nmtkit`."""

from nmtkit.cli import main

main()
