"""Differences of tensors, budgets measured from rounding, and float64 for models that lack it."""
