"""Attention calls as records: seen at the attention interface, or read from a model's own
arithmetic.
"""
