"""Draw the README's picture: the real output of a run on the built-in model with broken positions,
as SVG.

python scripts/picture.py docs/picture.svg
"""

from __future__ import annotations

import io
import sys
from functools import partial

from rich.console import Console

from attncheck.core import registry
from attncheck.core.settings import Settings
from attncheck.diagnosis.diagnose import diagnose
from attncheck.report.failures import failure_blocks
from attncheck.report.screen import finding_line
from attncheck.report.terminal import print_heading, summary_line
from attncheck.run.runner import run_probes
from attncheck.run.session import Session
from attncheck.suite.plan import Job

PROBES = ("future-token", "decode-paths", "position-reset", "kv-repeat")
WIDTH = 100


def main(path: str) -> None:
    session = Session(
        command="",
        listener=lambda event, report: None,
        examine=partial(run_probes, diagnose=diagnose),
    )
    calls = tuple((name, dict[str, object]()) for name in registry.select(PROBES))
    report = session.run(
        [Job(target="builtin:broken-positions", settings=Settings(), probes=calls)]
    )
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), highlight=False, markup=False, emoji=False
    )
    for target in report.targets:
        print_heading(target, console, apart=False)
        for finding in target.results:
            console.print(finding_line(finding, WIDTH))
        for line in failure_blocks(target, WIDTH):
            console.print(line)
    console.print(summary_line(report))
    console.save_svg(
        path,
        title="attncheck run builtin:broken-positions --probe future-token --probe decode-paths --probe position-reset --probe kv-repeat",
    )


if __name__ == "__main__":
    main(sys.argv[1])
