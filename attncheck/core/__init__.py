"""Errors, verdicts, findings and settings: what every other package may import. Standard library
only.
"""
