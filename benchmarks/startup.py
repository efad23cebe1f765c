"""How long commands take to start, against importing what they cannot do without.

    python -m benchmarks.startup [--repeats N]

The command and the imports it is held against run in turns, so that a slow minute of the machine slows both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

from benchmarks.processes import ratios, spread

SMALL = ("-c", "import typer, rich")
LIBRARIES = ("-c", "import torch, transformers")
COMMANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "--help": (("--help",), SMALL),
    "probes": (("probes",), SMALL),
    "run builtin:gqa --probe future-token": (("run", "builtin:gqa", "--probe", "future-token", "--no-progress"), LIBRARIES),
}


def startup(repeats: int) -> dict[str, Any]:
    """Seconds of each command and of the imports beside it, and their ratio."""
    found: dict[str, Any] = {}
    for name, (command, imports) in COMMANDS.items():
        ours, theirs = [], []
        seconds("-m", "attncheck", *command)  # the first start compiles and reads from disk
        for _ in range(repeats):
            theirs.append(seconds(*imports))
            ours.append(seconds("-m", "attncheck", *command))
        against = imports[-1]
        found[name] = {"against": against, "seconds": spread(ours), "imports": spread(theirs), "ratio": ratios(ours, theirs)}
    return found


def seconds(*arguments: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    print(json.dumps(startup(parser.parse_args().repeats), indent=1))


if __name__ == "__main__":
    main()
