"""The model under test: how it is named, loaded, asked and what it can take."""
