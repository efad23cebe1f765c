"""Faults of pictures, sounds and codebooks: what stands beside the tokens, and where it is read."""
