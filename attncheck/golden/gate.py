"""The gate: a model against a recording of an earlier one, as a finding like that of a probe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from attncheck.core.errors import TargetError, Unsupported, first_line
from attncheck.core.finding import Control, Finding
from attncheck.diagnosis.locate import source_of
from attncheck.golden.answer import GateAnswer, finding
from attncheck.golden.calls import GoldenCall
from attncheck.golden.controls import control, control_calls, lost_head, other_token
from attncheck.golden.file import Golden, GoldenEntry
from attncheck.golden.holding import HeldCall, held
from attncheck.golden.measured import LOGITS, NotHere, measured, rounding
from attncheck.golden.recording import REFUSED, by_precision
from attncheck.model.kept_state import model_untouched, process_untouched
from attncheck.model.precision import DTYPES
from attncheck.model.subject import Subject
from attncheck.model.weights import SavedBuffers, digests, same_digest
from attncheck.numerics.module_outputs import Event

SIZES = ("layers", "heads", "kv_heads", "vocab")
SLACK = 1e-9
"""Sums of equal weights differ by their order only."""
Says = Callable[[str], None]


def check_same(golden: Golden, subject: Subject) -> None:
    """Refuse a recording of another model.

    Raises:
        TargetError: layers, heads or vocabulary are not those of the recording, or the type of
            the model and all weights.
    """
    now = subject.facts.as_dict()
    differ = [
        name
        for name in SIZES
        if golden.model.get(name) is not None
        and now.get(name) is not None
        and golden.model[name] != now[name]
    ]
    another = now["model_type"] != golden.model.get("model_type") and not _shares(golden, subject)
    if differ or another:
        differ = differ or ["model_type"]
        was, is_now = (
            ", ".join(f"{name} {block.get(name)}" for name in differ)
            for block in (golden.model, now)
        )
        raise TargetError(
            f"{subject.name}: not the model that was recorded: {golden.model.get('class')} of "
            f"`{golden.name}` has {was}, here {now['class']} has {is_now}"
        )


def _shares(golden: Golden, subject: Subject) -> bool:
    """Whether any weight is that of the recording."""
    now = digests(subject.model)
    return not golden.weights or any(
        name in now and same_digest(before, now[name], SLACK)
        for name, before in golden.weights.items()
    )


def hold(
    golden: Golden,
    subject: Subject,
    says: Says = lambda words: None,
    with_controls: bool = True,
) -> GateAnswer:
    """Make every recorded call again and compare, then the controls.

    Raises:
        TargetError: the recording is of another model.
    """
    check_same(golden, subject)
    with process_untouched(), model_untouched(subject.model):
        calls = list(_held_calls(golden, subject, says))
        none: tuple[list[Control], str] = [], "no control was asked for"
        controls, reason = _controls(golden, subject, calls, says) if with_controls else none
        changed = tuple(_changed(golden, subject))
    answer = GateAnswer(
        golden=golden,
        calls=tuple(calls),
        controls=tuple(controls),
        no_control=reason,
        weights=changed,
    )
    worst = answer.worst
    if worst is None or worst.first is None:
        return answer
    return replace(answer, source=source_of(subject.model, worst.first.module))


def _held_calls(golden: Golden, subject: Subject, says: Says) -> Iterator[HeldCall]:
    entries = {entry.call: entry for entry in golden.entries}
    cut: set[Event] = set()
    highest = max((DTYPES[each.dtype].itemsize for each in entries), default=0)
    wanted = [call for call in entries if _reaches(subject, call)]
    for view, call, buffers in by_precision(subject, wanted):
        says(f"{subject.name}: {call.name}")
        top = DTYPES[call.dtype].itemsize == highest and not call.backend
        found = _held_call(view, entries[call], golden.vocab, buffers, None if top else cut)
        if top and found.held != "different":
            cut |= found.apart - {LOGITS}
        yield found
    reason = f"the model is loaded in {subject.dtype_name}"
    for call in entries:
        if not _reaches(subject, call):
            yield HeldCall(call=call, held="skipped", note=reason)


def _reaches(subject: Subject, call: GoldenCall) -> bool:
    """Whether the subject may be put into this precision: not above the one that was asked for."""
    asked = subject.settings.dtype
    return asked == "auto" or DTYPES[call.dtype].itemsize <= DTYPES[asked].itemsize


def _held_call(
    view: Subject,
    entry: GoldenEntry,
    vocab: int,
    buffers: SavedBuffers,
    cut: set[Event] | None,
) -> HeldCall:
    call = entry.call
    try:
        now = measured(view, call, vocab, buffers=buffers)
        return held(
            entry,
            now,
            lambda: rounding(view, call, now, vocab, buffers),
            None if cut is None else frozenset(cut),
        )
    except NotHere as reason:
        return HeldCall(call=call, held="skipped", note=str(reason))
    except REFUSED as error:
        words = str(error) if isinstance(error, Unsupported) else f"raises {first_line(error)}"
        return HeldCall(call=call, held="different", times=float("inf"), note=words)


def _controls(
    golden: Golden, subject: Subject, calls: Sequence[HeldCall], says: Says
) -> tuple[list[Control], str]:
    """A control for each precision, implementation and compiler, or why there is none."""
    entries = {entry.call: entry for entry in golden.entries}
    chosen = [each.call for each in control_calls(list(calls))]
    found: list[Control] = []
    for view, call, buffers in by_precision(subject, chosen):
        says(f"{subject.name}: {call.name} with a head lost")
        try:
            found.append(_control(view, golden, entries[call], buffers))
        except REFUSED as reason:
            return found, f"{call.name}: {reason}"
    return found, "" if chosen else "no call was compared that did not differ"


def _control(view: Subject, golden: Golden, entry: GoldenEntry, buffers: SavedBuffers) -> Control:
    if any(event != LOGITS for each in golden.entries for event in each.measured.sketches.events):
        return control(view, entry, lost_head(view, golden.entries), golden.vocab, buffers)
    token = view.inputs.other(entry.call.spec.tokens[0], 0, 1)[0]
    now = measured(view, other_token(entry.call, token), golden.vocab, buffers=buffers)
    found = held(entry, now, lambda: entry.rounding, frozenset())
    return Control(
        fault="another first token",
        detected=found.held == "different",
        max_abs=found.largest,
        case=entry.call.name,
    )


def _changed(golden: Golden, subject: Subject) -> Iterator[str]:
    """The weights that are not those of the recording, or are on one side only."""
    now = digests(subject.model)
    for name, before in golden.weights.items():
        if name not in now or not same_digest(before, now[name], SLACK):
            yield name
    yield from (name for name in now if name not in golden.weights)


def gate_finding(golden: Golden, subject: Subject, says: Says = lambda words: None) -> Finding:
    """Hold a model against a recording; the finding.

    Raises:
        TargetError: the recording is of another model.
    """
    started = time.perf_counter()
    return finding(hold(golden, subject, says), time.perf_counter() - started)
