"""YAML suites: many models, settings and probes in one file. Loads no torch, no transformers."""
