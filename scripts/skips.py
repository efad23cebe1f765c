"""Every kind of skip in reports of a sweep: how often, why, and whether an independent check agrees.

    python scripts/skips.py REPORT.json... > docs/skips.md

For each kind the check of `scripts/skip_checks.py` runs on a few of the types that were skipped for
it: it builds the small model, calls it as a user does, and asks nothing of attncheck's capabilities.
Exit code 1 where a check does not confirm its reason, or where a reason is of no kind.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attncheck.core.skip_kinds import KINDS
from attncheck.core.skips import OTHER, kind_of
from scripts.skip_checks import CHECKS, Case, confirmed

HEAD = """# Skips

What `attncheck run` does not ask, and why. A skip is a claim about the model, so each kind has a
reason that a script confirms without asking attncheck (`scripts/skip_checks.py`). A call that the
model accepts and breaks on is no skip but a failure. `--fail-on skip=KIND,…` accepts the kinds that
it lists and counts every other skipped question as failure.

Made by `python scripts/skips.py REPORT.json…` from {targets} targets: {asked} questions asked,
{skipped} skipped.

| kind | skips | types | reason | what confirms it | confirmed |
|---|---|---|---|---|---|
"""


def main(arguments: list[str] | None = None) -> int:
    """Print the table for the reports on the command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--types", type=int, default=3, help="check this many types of each kind")
    given = parser.parse_args(arguments)
    targets = [
        target
        for path in given.reports
        for target in json.loads(path.read_text(encoding="utf-8"))["targets"]
    ]
    cases: dict[str, list[Case]] = defaultdict(list)
    for case in (case for target in targets for case in skips_of(target)):
        cases[kind_of(case.reason)].append(case)
    asked = sum(
        each["verdict"] != "skip"
        for target in targets
        for finding in target["results"]
        for each in finding["cases"]
    )
    skipped = sum(map(len, cases.values()))
    print(HEAD.format(targets=len(targets), asked=asked, skipped=skipped), end="")
    refuted = 0
    for kind in KINDS:
        if found := cases.pop(kind.name, []):
            refuted += _row(kind.name, kind.means, found, given.types)
    for reason, number in Counter(case.reason for case in cases.get(OTHER, [])).items():
        print(f"of no kind, {number} times: {reason}", file=sys.stderr)
    return 1 if refuted or cases else 0


def skips_of(target: dict[str, Any]) -> Iterator[Case]:
    """Every skipped question of one target."""
    for finding in target["results"]:
        reasons = [case["note"] for case in finding["cases"] if case["verdict"] == "skip"]
        if finding["verdict"] == "skip" and not reasons:
            reasons = [finding["skip_reason"] or finding["summary"]]
        for reason in reasons:
            yield Case(target["target"], target["model"], reason)


def _row(name: str, means: str, found: list[Case], most: int) -> int:
    """Print the row of one kind; how many checks did not confirm it."""
    types = {case.target: case for case in found}
    sample = [types[target] for target in list(types)[:: max(1, len(types) // most)][:most]]
    wrong = [case for case in sample if not confirmed(name, case)]
    for case in wrong:
        print(f"{name}: {case.target}: not confirmed: {case.reason}", file=sys.stderr)
    what = (CHECKS[name].__doc__ or "").strip().splitlines()[0] if name in CHECKS else "nothing"
    agreed = f"{len(sample) - len(wrong)} of {len(sample)}"
    print(f"| `{name}` | {len(found)} | {len(types)} | {means} | {what} | {agreed} |")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())
