"""The version of the installed distribution."""

from importlib import metadata

__version__ = metadata.version("attncheck")
