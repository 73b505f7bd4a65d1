"""The commands: names, options and help texts.

They are loaded for `--help` and for shell completion, which must be quick. So a file here imports only click, cloup and
other light modules at its top, and the function of a command imports the code that carries it out.
"""
