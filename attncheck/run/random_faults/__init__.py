"""Faults that nobody enumerated: composed from parts, injected into healthy models without any
hypothesis of the diagnosis, and used to measure how many are caught, explained and placed.
"""
