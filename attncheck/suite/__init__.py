"""YAML suites: many models, settings and probes in one file. Loads neither torch nor transformers."""
