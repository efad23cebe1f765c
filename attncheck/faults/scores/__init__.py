"""Faults in heads, scores and softmax."""
