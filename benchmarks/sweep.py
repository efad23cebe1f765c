"""Duration and verdicts of the sweep over config types: every type, or every n-th of them.

python -m benchmarks.sweep [--every N] [--jobs N]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def sweep(every: int, jobs: int, pattern: str = "config:*") -> dict[str, Any]:
    """Minutes for a sample of the types with all probes, and for all of them at that rate."""
    from attncheck.core import registry
    from attncheck.core.settings import Settings
    from attncheck.run.sweep import Sweep, expand
    from attncheck.run.task import Limits
    from attncheck.suite.plan import Job

    every_type = expand([pattern])
    chosen = every_type[::every]
    calls = tuple((name, dict[str, Any]()) for name in registry.select())
    work = [Job(target=each, settings=Settings(), probes=calls, home=Path.cwd()) for each in chosen]
    started = time.perf_counter()
    with TemporaryDirectory() as folder:
        whole = Sweep(jobs=work, workers=jobs, limits=Limits(), folder=Path(folder))
        reports = [report for _, report in whole.run()]
    minutes = (time.perf_counter() - started) / 60
    slowest = max(reports, key=lambda report: report.seconds)
    return {
        "types": len(chosen),
        "of": len(every_type),
        "jobs": jobs,
        "minutes": minutes,
        "minutes_for_all": minutes * len(every_type) / len(chosen),
        "slowest": [slowest.target, slowest.seconds],
        "verdicts": dict(Counter(report.verdict.value for report in reports)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    print(json.dumps(sweep(options.every, options.jobs), indent=1))


if __name__ == "__main__":
    main()
