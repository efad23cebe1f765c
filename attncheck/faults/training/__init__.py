"""Faults in the loss and its gradient."""
