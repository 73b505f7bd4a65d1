"""The commands: names, options and help texts.

They are loaded for `--help` and for shell completion, which must be fast. The files in this package therefore import
only light modules, such as click and cloup, at the top level; the function of a command imports the code behind it.
"""
