"""Record a model: every planned call once as it is, and again with other roundings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

from attncheck.core.errors import TargetError, Unsupported, first_line
from attncheck.core.version import __version__
from attncheck.golden.calls import GoldenCall, planned
from attncheck.golden.file import Golden, GoldenEntry
from attncheck.golden.measured import measured, rounding
from attncheck.model.kept_state import model_untouched, process_untouched
from attncheck.model.refusal import REFUSALS
from attncheck.model.subject import Subject
from attncheck.model.weights import SavedBuffers, digests

Says = Callable[[str], None]
REFUSED = (Unsupported, *REFUSALS)


def record(
    subject: Subject,
    meta: dict[str, object],
    says: Says = lambda words: None,
    calls: list[GoldenCall] | None = None,
) -> Golden:
    """The recording of a model in every call that it takes, or in `calls`; `meta` are the versions
    of now.

    Raises:
        TargetError: it takes none.
    """
    entries: list[GoldenEntry] = []
    skipped: dict[str, str] = {}
    wanted = planned(subject) if calls is None else calls
    with process_untouched(), model_untouched(subject.model):
        for view, call, buffers in by_precision(subject, wanted):
            says(f"{subject.name}: {call.name}")
            try:
                found = measured(view, call, subject.facts.vocab, buffers=buffers)
                moved = rounding(view, call, found, subject.facts.vocab, buffers)
            except REFUSED as error:
                skipped[call.name] = str(error) if str(error) else first_line(error)
                continue
            entries.append(GoldenEntry(call, found, moved))
    if not entries:
        reason = next(iter(skipped.values()), "it takes no call")
        raise TargetError(f"{subject.name}: nothing to record: {reason}")
    inputs = subject.inputs
    reached = {entry.call.way.partition(",")[0] for entry in entries}
    for border in inputs.unreached:
        if f"past the {border.kind} ({border.length})" not in reached:
            skipped[f"past the {border.kind} ({border.length})"] = "too long to be affordable"
    settings = {"attn": subject.attn, "dtype": subject.loaded.own_dtype}
    return Golden(
        name=subject.name,
        model=subject.facts.as_dict(),
        vocab=subject.facts.vocab,
        entries=tuple(entries),
        weights=digests(subject.model),
        meta={"attncheck": __version__, **meta, **settings},
        skipped=skipped,
    )


def by_precision(
    subject: Subject, calls: list[GoldenCall]
) -> Iterator[tuple[Subject, GoldenCall, SavedBuffers]]:
    """The calls, each with the subject in its precision and the buffers to start from. Weights are
    cast once for all calls that follow each other in one precision.
    """
    for dtype, some in groupby(calls, key=lambda call: call.dtype):
        with subject.at(dtype) as view:
            buffers = SavedBuffers(view.model)
            for call in some:
                yield view, call, buffers
