"""Each given type, sharded over the processes of torchrun against whole: one line of JSON from the first process."""

from __future__ import annotations

import json
import os
import sys

from attncheck.compare.sides import held_side_by_side
from attncheck.settings import Settings
from attncheck.subject import ranks

if __name__ == "__main__":
    found = {}
    for kind in sys.argv[1:]:
        whole, part = (Settings(tp=tp, length=14, layers=2) for tp in (1, 2))
        comparison = held_side_by_side(f"config:{kind}", f"config:{kind}", whole, part, lambda text: None).comparison
        found[kind] = [comparison.verdict, [way.positions for way in comparison.ways], list(comparison.weights)]
    ranks.part()
    if os.environ["RANK"] == "0":
        print(json.dumps(found))
