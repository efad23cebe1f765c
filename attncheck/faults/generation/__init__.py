"""Faults in what generate() passes to the model and reads from it."""
