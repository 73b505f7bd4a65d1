"""What holds on a GPU, and how fast it is there: `tests/tools/gpu/slot.sh` runs all of it and says how it is used."""
