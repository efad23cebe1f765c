"""What faults are built from.

- `injection`, `windows` and `store_edits` change a model: the arguments of its forward, its
  attention calls, hidden states, its cache.
- `trusted` is the path that predictions run on, as one forward; `schedule` runs it in chunks on
  a key/value store of its own; `expected` says which keys each query should read.
- A `Hypothesis` is a `Change` of that path, or a prediction of its own; `masks`, `positions`,
  `windows` and `store_edits` have parts for several faults.
"""

from __future__ import annotations

from attncheck.faults.engine.expected import Allowed, View
from attncheck.faults.engine.fault import Fault, Injected
from attncheck.faults.engine.hypothesis import Hypothesis, WrongForward, words
from attncheck.faults.engine.trusted import Change, Trusted

__all__ = [
    "Allowed",
    "Change",
    "Fault",
    "Hypothesis",
    "Injected",
    "Trusted",
    "View",
    "WrongForward",
    "words",
]
