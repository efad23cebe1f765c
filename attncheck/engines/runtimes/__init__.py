"""Runtimes in this process. Each module opens one: `open_runtime(where)` gives an `Engine`."""
