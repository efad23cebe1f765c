"""Break single places of the core on purpose, and ask whether the tests notice."""
