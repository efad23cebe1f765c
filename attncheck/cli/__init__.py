"""The command line: one file a command; importing it loads neither torch nor transformers."""
