"""Models, one file per paper; their interfaces are in `base.py`."""
