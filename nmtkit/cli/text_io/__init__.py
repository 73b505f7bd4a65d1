"""Input and output of commands: reading lines and files, and writing results to streams, files and folders."""
