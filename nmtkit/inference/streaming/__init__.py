"""From line to text in four stages, `read -> encode -> decode -> write`; begin with `pipeline.py`."""
