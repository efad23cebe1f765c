"""Servers behind HTTP: a client that is careful, and one module for each way of asking."""
