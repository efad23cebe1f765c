"""Engines beside transformers that run the same weights: servers behind HTTP, other runtimes."""
