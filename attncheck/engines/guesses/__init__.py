"""Faults that an engine may have, each as a prediction of its log-probabilities in transformers."""
