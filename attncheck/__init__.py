"""attncheck finds attention bugs in Hugging Face models: the kind where every shape is right and the output is wrong.

Importing it loads neither torch nor transformers.
"""

__version__ = "0.1.0"
