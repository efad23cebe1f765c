"""Rounding or a fault: the same comparison in every precision.

Rounding shrinks by orders of magnitude from bfloat16 to float64; a fault does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from attncheck.core.measurement import Comparison
from attncheck.core.settings import PRECISIONS, Settings
from attncheck.diagnosis.failure import REFUSED
from attncheck.model.precision import DTYPES, NAMES, fits
from attncheck.model.subject import Subject
from attncheck.targets.load import load
from attncheck.triage.answer import GreedySplit, PrecisionLine
from attncheck.triage.own_call import SLOW, Seen

USUAL = "float32"
SHOWN = ("bfloat16", "float32", "float64")
SHRINKS = 30.0
"""Rounding becomes smaller by at least this factor from one precision to the next finer one."""
QUALITY = ("upgrade", "training", "packing")
"""Symptoms that state a loss of quality: a few tokens that flip do not explain one."""
SHARE = 0.2
"""The share of flipped tokens from which on quality may suffer."""
Run = Callable[[Subject], Sequence[Seen]]


@final
@dataclass(frozen=True)
class Ladder:
    """One line per precision, coarse to fine, with the case behind each, and where greedy text
    diverges in the reporter's own.
    """

    reported: str
    lines: tuple[PrecisionLine, ...] = ()
    cases: tuple[Comparison, ...] = ()
    split: GreedySplit | None = None

    @property
    def own(self) -> PrecisionLine | None:
        """The line of the reporter's own precision."""
        return next((line for line in self.lines if line.dtype == self.reported), None)

    @property
    def failing(self) -> tuple[str, Comparison] | None:
        """The precision and the case of the finest line, where rounding does not explain it."""
        if not self.lines:
            return None
        case = self.cases[-1]
        wrong = case.beyond and not case.in_doubt and case.resolved
        return (self.lines[-1].dtype, case) if wrong else None

    def reproduces(self, symptom: str, difference: float) -> bool:
        """Whether the own precision shows what was reported: tokens that change (enough of them to
        lower a score where that was reported), or a logit difference as large as the report's.
        """
        own = self.own
        if own is None:
            return False
        if difference:
            return own.max_abs >= difference / 2
        if symptom in QUALITY:
            return own.flips > SHARE * own.positions
        return own.flips > 0

    @property
    def is_rounding(self) -> bool:
        """Whether a finer precision shows that the difference of the own one is rounding."""
        own = self.own
        if own is None or self.failing is not None:
            return False
        finest = self.lines[-1]
        if finest is own:
            return own.dtype == "float64" and own.max_abs <= own.budget
        return finest.max_abs <= finest.budget and finest.max_abs * SHRINKS <= own.max_abs


def opened(target: str, settings: Settings) -> tuple[Subject, str]:
    """The subject in the precision that decides, and the precision that the reporter uses.

    Raises:
        TargetError: the target cannot be loaded.
    """
    subject = load(target, replace(settings, dtype="auto"))
    reported = settings.dtype if settings.dtype != "auto" else _stated(subject)
    slow = subject.facts.parameters > SLOW
    if slow and subject.dtype_name == "float64" and reported != "float64":
        return subject.cast(USUAL), reported
    return subject, reported


def _stated(subject: Subject) -> str:
    """The dtype of the checkpoint according to the config."""
    config: Any = subject.config
    stated = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    usual = str(stated).removeprefix("torch.") if isinstance(stated, str) else USUAL
    return NAMES.get(stated, usual)  # type: ignore[arg-type]


def ladder(subject: Subject, run: Run, reported: str) -> Ladder:
    """`run` in every precision that decides and fits into memory, the reporter's among them."""
    lines, cases, split = [], [], None
    for dtype in _levels(subject, reported):
        if not fits(subject.model, DTYPES[dtype], subject.device):
            continue
        try:
            with subject.at(dtype) as view:
                seen = run(view)
        except REFUSED:
            continue  # quantized weights and some kernels refuse another precision
        if not seen:
            continue
        line, case = _line(dtype, [each.case for each in seen])
        lines.append(line)
        cases.append(case)
        if dtype == reported:
            split = next((each.split for each in seen if each.split), None)
    return Ladder(reported, tuple(lines), tuple(cases), split)


def _levels(subject: Subject, reported: str) -> Iterator[str]:
    """Coarse to fine; of a slow model the reporter's own and the next finer one only."""
    levels = [name for name in PRECISIONS if name in (*SHOWN, reported)]
    if subject.facts.parameters <= SLOW:
        yield from levels
        return
    at = levels.index(reported)
    finer = [name for name in levels[at + 1 :] if name in (USUAL, "float64")]
    yield from (reported, *finer[:1])


def _line(dtype: str, cases: list[Comparison]) -> tuple[PrecisionLine, Comparison]:
    """The case that moves the logits most, or that flips the most best tokens; and the worst."""
    worst = max(cases, key=lambda case: case.excess)
    largest = max(cases, key=lambda case: case.max_abs)
    most = max(cases, key=lambda case: case.divergence.top1_flips or 0)
    shown = most if most.divergence.top1_flips else largest
    line = PrecisionLine(
        dtype=dtype,
        way=shown.name,
        max_abs=largest.max_abs,
        budget=largest.budget,
        flips=sum(case.divergence.top1_flips or 0 for case in cases),
        positions=sum(case.positions for case in cases),
    )
    return line, worst
