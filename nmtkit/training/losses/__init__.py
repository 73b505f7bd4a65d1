"""Losses, registered in the order in which the log reports them."""

from importlib import import_module

for _name in ("likelihood", "masked_words", "corruption", "attention", "reinforcement"):
    import_module(f"{__name__}.{_name}")
