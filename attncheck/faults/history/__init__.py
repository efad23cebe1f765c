"""Faults in what a model keeps from one call to the next, and in what it does to its caller."""
