"""Which calls a recording holds: every way in which users call a model, past every border of its
config, in several precisions, under two implementations, compiled, and generate().

Axes: B batch, T positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, final

from attncheck.model.compiling import why_not_compiled
from attncheck.model.forward_spec import ForwardSpec, Mask2D, Mask4D
from attncheck.model.inputs import Row
from attncheck.model.long_inputs import LONG
from attncheck.model.padding import left_padded, pad_rows
from attncheck.model.precision import DTYPES
from attncheck.model.subject import Subject
from attncheck.model.switching import not_switched

USUAL = "bfloat16"
"""What most users compute in, whatever a checkpoint was stored in."""
ONE, CHUNKS, STEPS = "one forward", "in chunks on a cache", "token by token"
BATCH, LEFT, RIGHT = "batch of two", "left-padded batch", "right-padded batch"
LEFT_STEPS, PACKED, LONG_ROW = "left-padded batch on a cache", "packed documents", "long row"
GENERATE, GENERATE_LEFT = "generate", "generate behind left padding"
ALSO_LOWER = (ONE, CHUNKS, STEPS, BATCH, LEFT, RIGHT, LEFT_STEPS)
ALSO_SWITCHED = (ONE, LEFT, LEFT_STEPS)
OTHERS = {"sdpa": "eager", "eager": "sdpa"}
SINGLE = 4
NEW_TOKENS = 6
COMPILED = "eager"
"""A backend that needs no C++ compiler and few seconds: the model is traced, and what was traced is
run by the usual kernels.
"""
MOST_COMPILED = 20_000_000
"""Parameters up to which tracing a model takes seconds."""
MOST_WORK = 2e11
MOST_SCORES = 1 << 27


@final
@dataclass(frozen=True, kw_only=True)
class GoldenCall:
    """One call: a forward in a precision, compiled by a `backend`, or `new_tokens` generated behind
    `padding` tokens.
    """

    way: str
    spec: ForwardSpec
    dtype: str
    backend: str = ""
    new_tokens: int = 0
    padding: int = 0

    @property
    def name(self) -> str:
        """The name of the case: `left-padded batch, bfloat16, eager`."""
        compiled = f"compiled ({self.backend})" if self.backend else ""
        return ", ".join(filter(None, (self.way, self.dtype, self.spec.attn, compiled)))

    @property
    def group(self) -> tuple[str, str | None, str, bool]:
        """What a control holds for: precision, implementation, compiler, generate() or not."""
        return self.dtype, self.spec.attn, self.backend, bool(self.new_tokens)

    def to_json(self) -> dict[str, Any]:
        """The call as JSON."""
        spec = {key: value for key, value in asdict(self.spec).items() if value is not None}
        kind = type(self.spec.mask).__name__ if self.spec.mask is not None else ""
        return {**vars(self), "spec": spec, "mask": kind}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> GoldenCall:
        """The call that `to_json` wrote."""
        spec, kind = dict(data["spec"]), data["mask"]
        masks: dict[str, Any] = {"Mask2D": Mask2D, "Mask4D": Mask4D}
        if kind:
            spec["mask"] = masks[kind](**_tuples(spec["mask"]))
        others = {key: value for key, value in data.items() if key not in ("spec", "mask")}
        return cls(spec=ForwardSpec(**_tuples(spec)), **others)


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: _tuple(value) for key, value in fields.items()}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, (list, tuple)) else value


def planned(subject: Subject) -> list[GoldenCall]:
    """Every call that the model takes: all ways in the highest precision, most in those of its
    weights and of most users, some under another implementation, one compiled.
    """
    highest = subject.dtype_name
    ways = {**forwards(subject), **_past_borders(subject)}
    calls = [GoldenCall(way=way, spec=spec, dtype=highest) for way, spec in ways.items()]
    calls += _generated(subject)
    other = OTHERS.get(str(subject.attn))
    switched = other if other and not_switched(subject, other) is None else None
    for dtype in _dtypes(subject):
        kept = {way: spec for way, spec in ways.items() if way in ALSO_LOWER or "past" in way}
        if dtype != highest:
            calls += [GoldenCall(way=way, spec=spec, dtype=dtype) for way, spec in kept.items()]
        for way in ALSO_SWITCHED if switched else ():
            if way in ways:
                spec = replace(ways[way], attn=switched)
                calls.append(GoldenCall(way=way, spec=spec, dtype=dtype))
    return calls + list(_compiled(subject, ways))


def _dtypes(subject: Subject) -> list[str]:
    """The precision of the subject, then that of its weights and that of most users."""
    own, highest = subject.loaded.own_dtype, subject.dtype
    wanted = [own, USUAL] if own in ("float32", "float64") else [own]
    lower = [each for each in wanted if DTYPES[each].itemsize < highest.itemsize]
    if subject.precision.widened:  # weights that cannot be cast stay what they are
        lower = []
    return [subject.dtype_name, *dict.fromkeys(lower)]


def forwards(subject: Subject) -> dict[str, ForwardSpec]:
    """The ways of the usual row by name, as far as the model takes them."""
    inputs, can = subject.inputs, subject.can
    row = inputs.row
    found = {ONE: ForwardSpec((row,)), BATCH: ForwardSpec((row, inputs.other(row, salt=31)))}
    if can.cache:
        found[CHUNKS] = ForwardSpec((row,), chunks=_between(_borders(subject), len(row)))
    if can.steps:
        found[STEPS] = ForwardSpec((row,), chunks=_stepping(_borders(subject), len(row)))
    if can.mask_2d:
        batch = pad_rows(subject)
        found[LEFT] = left_padded(subject, batch)
        found[RIGHT] = batch.spec("right", salt=2)
        if can.steps:
            chunks = _stepping((), len(row))
            found[LEFT_STEPS] = left_padded(subject, batch, chunks)
    if can.packs:
        half = len(row) // 2
        positions = (tuple(range(half)) + tuple(range(len(row) - half)),)
        found[PACKED] = ForwardSpec((row,), positions=positions)
    if inputs.length < min(LONG, inputs.room):
        longer = inputs.fresh(min(LONG, inputs.room) - len(row), salt=41)
        found[LONG_ROW] = ForwardSpec((row + longer,))
    return found


def _borders(subject: Subject) -> tuple[int, ...]:
    found = {each.length for each in subject.inputs.boundaries}
    return tuple(sorted(found)) or (subject.inputs.length // 2,)


def _between(borders: tuple[int, ...], length: int) -> tuple[int, ...]:
    """Chunks that end at a third, one token later, and at each border."""
    third = max(1, length // 3)
    ends = sorted({third, third + 1, *borders, length})
    kept = [end for end in ends if 0 < end <= length]
    return tuple(end - start for start, end in zip([0, *kept], kept, strict=False))


def _stepping(borders: tuple[int, ...], length: int) -> tuple[int, ...]:
    """Single tokens over each border and at the end; chunks in between."""
    single = {at for border in (*borders, length) for at in range(border - SINGLE, border + 2)}
    ends = {end for at in single for end in (at, at + 1) if 0 < end <= length} | {length}
    return tuple(end - start for start, end in zip([0, *sorted(ends)], sorted(ends), strict=False))


def _past_borders(subject: Subject) -> dict[str, ForwardSpec]:
    """A row past each border that the usual row does not reach, where that is affordable."""
    found = {}
    for border in subject.inputs.unreached:
        row = _longer(subject, border.length + 8)
        if row:
            name = f"past the {border.kind} ({border.length})"
            found[f"{name}, {ONE}"] = ForwardSpec((row,))
            if subject.can.steps:
                chunks = _stepping((border.length,), len(row))
                found[f"{name}, {STEPS}"] = ForwardSpec((row,), chunks=chunks)
    return found


def _longer(subject: Subject, length: int) -> Row:
    facts, inputs = subject.facts, subject.inputs
    scores = length * length * (facts.heads or 1)
    fits = facts.parameters * length <= MOST_WORK and scores <= MOST_SCORES
    if not fits or length > max(facts.context or length, inputs.room):
        return ()
    return inputs.row + inputs.fresh(length - inputs.length, salt=43)


def _generated(subject: Subject) -> Iterator[GoldenCall]:
    """generate() from half of the row, alone and behind padding."""
    prompt = ForwardSpec((subject.inputs.row[: max(1, subject.inputs.length // 2)],))
    usual = GoldenCall(way=GENERATE, spec=prompt, dtype=subject.dtype_name, new_tokens=NEW_TOKENS)
    if callable(getattr(subject.model, "generate", None)):
        yield usual
        if subject.can.mask_2d:
            yield replace(usual, way=GENERATE_LEFT, padding=3)


def _compiled(subject: Subject, ways: dict[str, ForwardSpec]) -> Iterator[GoldenCall]:
    """The padded batch compiled, in the numerics that users get."""
    backend = subject.settings.compiled or COMPILED
    small = subject.facts.parameters <= MOST_COMPILED or subject.settings.compiled
    if not small or why_not_compiled(backend, subject.device) is not None:
        return
    way = LEFT if LEFT in ways else BATCH
    spec = replace(ways[way], unpromoted=True)
    yield GoldenCall(way=way, spec=spec, dtype=_compiled_dtype(subject), backend=backend)


def _compiled_dtype(subject: Subject) -> str:
    """float32 where the weights can be cast to it: half precisions see less, and float64 without
    promotion breaks on masks of the library.
    """
    return (
        "float32"
        if subject.dtype_name == "float64" and not subject.precision.widened
        else (subject.dtype_name)
    )
