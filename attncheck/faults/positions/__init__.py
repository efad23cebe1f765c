"""Faults in the position of each token."""
