"""What this machine does quickest, found by measuring it: settings that a recipe leaves open (`auto`).

`turns.py` measures ways side by side, `training.py` knows the ways to train and `searching.py` those to search,
`found.py` keeps what was found.
"""
