"""Input and output of commands: reading lines and files, writing results and folders."""
