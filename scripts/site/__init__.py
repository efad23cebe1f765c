"""The documentation site, made from the sources: `python -m scripts.site` (`make docs`)."""
