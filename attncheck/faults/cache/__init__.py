"""Faults in the keys, values and states that are kept between calls."""
