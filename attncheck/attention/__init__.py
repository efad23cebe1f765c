"""Attention calls: recorded at the attention interface or in a model's own arithmetic, read and
computed independently.
"""
