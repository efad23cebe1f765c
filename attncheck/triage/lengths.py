"""Ever longer rows: what only shows past a power of two, a window or a rotary switch that shorter
rows did not reach.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from attncheck.core.errors import Unsupported
from attncheck.core.finding import Finding, Measurement, Verdict
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Row
from attncheck.model.passes import REFUSALS
from attncheck.model.subject import Subject
from attncheck.probing import describe
from attncheck.triage import axes, steps

POWERS = (32, 64, 128, 256)
LONGEST = 520


def lengths(subject: Subject, log: steps.Log) -> Finding | None:
    """Ever longer rows, one past each power of two and each border of the config that the probes
    did not reach.

    A row in pieces on a cache, and its first half by itself, must give what one forward over it
    gives.
    """
    started = time.perf_counter()
    cases: list[Measurement] = []
    for length in _lengths(subject):
        log.says(f"{length} tokens")
        row = subject.inputs.fresh(length, salt=length)
        for name, spec in _of_length(subject, row):
            try:
                want_BTV = subject.logits(ForwardSpec((row,)))[:, : spec.length]
                cases.append(
                    subject.compare(
                        name, subject.logits(spec), want_BTV, spec=(spec, ForwardSpec((row,)))
                    )
                )
            except (Unsupported, *REFUSALS):
                continue
            if axes.fails(cases[-1]) and not cases[-1].in_doubt:
                log.add("lengths", Verdict.FAIL, f"{name}: {describe(cases[-1])}", started)
                return steps.explained(subject, tuple(cases), log)
    if cases:
        words = f"{len(cases)} rows of up to {max(case.positions for case in cases)} tokens answer the same in pieces and cut short"
        log.add("lengths", Verdict.PASS, words, started)
    return None


def _lengths(subject: Subject) -> list[int]:
    context = subject.facts.context or LONGEST
    wanted = {size + 1 for size in POWERS} | {
        boundary.length + 3 for boundary in subject.inputs.unreached
    }
    return sorted(
        length for length in wanted if subject.inputs.length < length <= min(LONGEST, context)
    )


def _of_length(subject: Subject, row: Row) -> Iterator[tuple[str, ForwardSpec]]:
    half = len(row) // 2
    if subject.can.decodes:
        yield f"the first {half} of {len(row)} tokens by themselves", ForwardSpec((row[:half],))
        if subject.can.cache:
            yield (
                f"{len(row)} tokens in two pieces",
                ForwardSpec((row,), chunks=(half, len(row) - half)),
            )
