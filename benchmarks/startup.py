"""How long commands take to start, against importing what they cannot do without.

    python -m benchmarks.startup [--repeats N]

The command and the imports that it is compared with run in turns, so that a slow minute of the
machine slows both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

from benchmarks.processes import ratios, spread

SMALL = "import typer, rich"
LIBRARIES = "import torch, transformers"
MODEL_CLASS = "from transformers import LlamaForCausalLM"
"""What every script that loads a model imports: transformers itself loads its classes lazily."""

COMMANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "--help": (("--help",), (SMALL,)),
    "probes": (("probes",), (SMALL,)),
    "run builtin:gqa --probe future-token": (
        ("run", "builtin:gqa", "--probe", "future-token", "--no-progress"),
        (LIBRARIES, MODEL_CLASS),
    ),
}


def startup(repeats: int) -> dict[str, Any]:
    """Seconds of each command and of the imports beside it, and their ratios."""
    return {
        name: _started(command, imports, repeats) for name, (command, imports) in COMMANDS.items()
    }


def _started(command: tuple[str, ...], imports: tuple[str, ...], repeats: int) -> dict[str, Any]:
    seconds("-m", "attncheck", *command)  # the first start compiles and reads from disk
    rounds = [
        (seconds("-m", "attncheck", *command), [seconds("-c", code) for code in imports])
        for _ in range(repeats)
    ]
    ours = [one for one, _ in rounds]
    against = {code: [others[at] for _, others in rounds] for at, code in enumerate(imports)}
    return {
        "seconds": spread(ours),
        "against": {
            code: {"seconds": spread(theirs), "ratio": ratios(ours, theirs)}
            for code, theirs in against.items()
        },
    }


def seconds(*arguments: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    print(json.dumps(startup(parser.parse_args().repeats), indent=1))


if __name__ == "__main__":
    main()
