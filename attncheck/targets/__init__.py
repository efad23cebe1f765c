"""Load targets: hub ids, folders, .gguf files, built-in and random models, adapters."""
