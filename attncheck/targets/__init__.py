"""What the user named -> a loaded model: hub ids, folders, .gguf files, built-in and random models,
adapters.
"""
