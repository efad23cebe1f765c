"""Faults in which keys each query may read."""
