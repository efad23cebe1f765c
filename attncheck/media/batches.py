"""Batches of rows with pictures or sounds in them and without, each row against itself alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise

from attncheck.core.measurement import Cause, Comparison, Measurement
from attncheck.core.merging import merged
from attncheck.media.cases import MASKED, MIXED, ONE, OTHER, THIRD, Measured, asked
from attncheck.media.mixing import mixing_module
from attncheck.media.rows import MediaRow, MediaRows
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import max_abs_diff


def beside(subject: Subject) -> Iterator[Measurement]:
    """Rows of a batch with items and without, each against itself alone."""
    cases: dict[str, Measured] = {
        "two rows with a {} each": partial(_alone, seeds=((ONE,), (OTHER,))),
        "a row with a {} beside one of text": partial(_alone, seeds=((), (ONE,))),
        "one {} beside two": partial(_alone, seeds=((THIRD,), (ONE, OTHER))),
        "a row with a {} beside one of text, decoded": partial(
            _alone, seeds=((), (ONE,)), steps=True
        ),
        "one {} beside two, decoded": partial(_alone, seeds=((THIRD,), (ONE, OTHER)), steps=True),
    }
    return asked(subject, cases)


def padded(subject: Subject) -> Iterator[Measurement]:
    """Rows of other lengths, left-padded, each against itself alone."""
    cases: dict[str, Measured] = {
        "left, a shorter row with a {}": partial(_alone, seeds=((ONE,), (OTHER,)), shorter=1),
        "left, a shorter row of text beside a {}": partial(_alone, seeds=((), (ONE,)), shorter=0),
        "left, a shorter row with a {}, decoded on a padded cache": partial(
            _alone, seeds=((ONE,), (OTHER,)), shorter=1, steps=True
        ),
    }
    return asked(subject, cases)


def _alone(
    rows: MediaRows,
    name: str,
    seeds: tuple[tuple[int, ...], ...],
    shorter: int | None = None,
    steps: bool = False,
) -> Comparison:
    """Rows together against each alone. All have one length, but the one that is `shorter`."""
    subject, batch = rows.subject, rows.batch(seeds, shorter)
    if any(len(row.ids) < len(batch[0].ids) for row in batch) or shorter is not None:
        subject.can.mask_2d.require()
    length = max(len(row.ids) for row in batch)
    chunks = (length - 3, 1, 1, 1) if steps else ()
    if steps:
        subject.can.steps.require()
    together, cases = rows.spec(*batch, chunks=chunks, prompt=length - 3), []
    for number, row in enumerate(batch):
        alone = rows.spec(row, prompt=len(row.ids) - 3)
        real = slice(length - len(row.ids), length)
        cases.append(
            subject.compare_forwards(
                name,
                together,
                alone,
                row=number,
                at=real,
                alone=True,
                budget=rows.budget,
                note=f"row {number}",
            )
        )
    case = merged(name, cases)
    if not case.beyond:
        return case
    cause = _cause(rows, batch, together)
    if not cause.fault and not steps and shorter is None:
        cause = Cause(MIXED)  # rows of one length, in one forward
    if not cause.module:
        return replace(case, cause=cause)
    note = f"{case.note}; in {cause.module} {rows.kind}s read those of other rows"
    return replace(case, note=note, cause=cause)


def _cause(rows: MediaRows, batch: list[MediaRow], together: ForwardSpec) -> Cause:
    """The fault whose prediction the rows follow: masked states that are read, items that were
    dealt out in reverse order, or that meet those of other rows.
    """
    if rows.reads_masked_states:
        return MASKED
    seeds = [seed for row in batch for seed in row.seeds][::-1]
    starts = [0, *accumulate(len(row.seeds) for row in batch)]
    logits_BTV, residual = rows.subject.logits(together), 0.0
    for number, (row, (start, stop)) in enumerate(zip(batch, pairwise(starts), strict=True)):
        swapped = rows.spec(replace(row, seeds=tuple(seeds[start:stop])), prompt=len(row.ids) - 3)
        got_TV = logits_BTV[number, -len(row.ids) :]
        residual = max(residual, max_abs_diff(rows.subject.logits(swapped)[0], got_TV))
    if residual <= rows.budget.value:
        return Cause("pictures-swapped", residual)
    module = mixing_module(rows, batch[-1], together)
    return Cause(MIXED, module=module) if module else Cause()
