"""Divergence of two logit tensors, budgets measured from rounding, the precision ladder."""
