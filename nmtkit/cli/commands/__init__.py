"""The commands: names, options and help texts.

They are loaded for `--help` and for completion in a shell, which must be quick. So a file here imports only click,
cloup and other light modules at its top, and the function of a command imports what carries it out.
"""
