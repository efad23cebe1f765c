"""Tell what concerns a model from what the library does to every model of its kind.

A case that warns is asked, the same way, of reference models that are built from the library's own
classes and have no feature that the checked model lacks. Where a reference warns as well, the case
is a trap of this library and version: it is set aside from the finding and listed once per run.
A case that fails stays a failure; where a reference fails as well, the finding says by which.
Nothing here knows which traps there are.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import final

from attncheck.core.choice import Choice, choosing
from attncheck.core.errors import AttncheckError, Unsupported
from attncheck.core.finding import Evidence, Finding, Trap
from attncheck.core.measurement import Measurement, Quantity, verdict_of
from attncheck.core.ruling import describe
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.model.attempts import asking
from attncheck.model.caches import key_values, states
from attncheck.model.forward_spec import ForwardSpec, counting
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import finitely_beyond
from attncheck.probing import Probe
from attncheck.run.measuring import measured_cases
from attncheck.targets.load import load

Feature = Callable[[Subject], bool]
Broken = dict[str, Measurement]
BROKEN = (Verdict.WARN, Verdict.FAIL)
UNASKABLE = (Unsupported, RuntimeError, TypeError, IndexError)


def _dtypes(subject: Subject) -> tuple[str, ...]:
    """The dtype that decides what a model means, and its own."""
    return subject.higher_dtype() or subject.dtype_name, subject.dtype_name


def _encoder_decoder(subject: Subject) -> bool:
    return bool(getattr(subject.config, "is_encoder_decoder", False))


def _encoder(subject: Subject) -> bool:
    return not subject.can.decodes


def _decoder(subject: Subject) -> bool:
    """Whether it decodes, be it behind an encoder: it has all that a plain decoder has."""
    return not _encoder(subject)


def _windowed_encoder(subject: Subject) -> bool:
    return _encoder(subject) and subject.facts.window is not None


def _windowed(subject: Subject) -> bool:
    """Whether it has windows, or its cache forgets the first keys otherwise, as chunks allow."""
    if not _decoder(subject) or subject.facts.window is not None:
        return _decoder(subject)
    if _encoder_decoder(subject) or not subject.can.steps:
        return False  # what it keeps of a short encoder looks like a window
    cache = subject.passes.cache(ForwardSpec(subject.inputs.tokens, use_cache=True))
    length = subject.inputs.length
    return any(each.tensor.shape[-2] < length for each in key_values(cache))


def _recurrent(subject: Subject) -> bool:
    """Whether its cache holds states that are neither keys nor values."""
    if not _decoder(subject) or not subject.can.steps:
        return False
    return bool(states(subject.passes.cache(ForwardSpec(subject.inputs.tokens, use_cache=True))))


def _absolute(subject: Subject) -> bool:
    """Whether moving every position by one moves the logits, in the dtype that decides what they
    mean: no rotary model does that.
    """
    if not _decoder(subject) or not subject.can.takes_positions:
        return False
    higher = subject.higher_dtype()
    with subject.at(higher) if higher else contextlib.nullcontext(subject) as there:
        return bool(there.passes.once("positions move", lambda: _moved_by_positions(there)))


def _moved_by_positions(subject: Subject) -> bool:
    row = subject.inputs.row[:-1]
    usual_BTV, moved_BTV = (
        subject.logits(ForwardSpec((row,), positions=counting(1, len(row), start)))
        for start in (0, 1)
    )
    return finitely_beyond(usual_BTV, moved_BTV, subject.budget.value)


REFERENCES: tuple[tuple[str, Feature], ...] = (
    ("builtin:gqa", _decoder),
    ("builtin:mha", _absolute),
    ("builtin:window", _windowed),
    ("config:mistral", _windowed),
    ("config:mamba2", _recurrent),
    ("config:qwen3_next", _recurrent),
    ("config:seq2seq/bart", _encoder_decoder),
    ("config:seq2seq/t5", _encoder_decoder),
    ("config:masked/bert", _encoder),
    ("config:masked/modernbert", _windowed_encoder),
)
"""Each reference, and the feature of a model that makes it a model of its kind."""


PAGE = """trap-{name}

A case that warns of any model of this library version: `{case}` of the probe `{probe}`.
It is no finding about the model that was checked, so it does not move its verdict. It does concern
whoever makes this call. `attncheck explain {probe}` says what the case asks. Measured now:
"""


NOTHING_ELSE = "every case that could be judged is a trap of the library"


@final
@dataclass
class Traps:
    """Sets traps of the library aside. References are loaded once, and each asked once per probe
    and setting.
    """

    _loaded: dict[tuple[str, Settings], Subject | None] = field(default_factory=dict)
    _asked: dict[tuple[str, Settings, Probe], dict[str, Measurement | None]] = field(
        default_factory=dict
    )

    def __call__(self, subject: Subject, probe: Probe, finding: Finding) -> Finding:
        """The finding without the warnings that a reference shares, which become its `traps`; for a
        failure, `shared_by` is the reference that has each of its failing cases too.
        """
        if subject.settings.tp is not None:
            return finding  # a reference would have to be sharded as well
        warned = [case for case in finding.cases if verdict_of(case) is Verdict.WARN]
        found = [trap for case in warned for trap in self._trap(subject, probe, case)]
        finding = _set_aside(probe, finding, found) if found else finding
        if finding.verdict is not Verdict.FAIL:
            return finding
        return replace(finding, shared_by=self._failing_alike(subject, probe, finding))

    def _trap(self, subject: Subject, probe: Probe, case: Measurement) -> Iterator[Trap]:
        for reference, shared in self._alike(subject, probe, case):
            yield Trap(
                trap=trap_name(probe.name, case.name),
                call=case.name,
                reference=reference,
                max_abs=amount(shared),
                advice=case.note,
            )
            return

    def _failing_alike(self, subject: Subject, probe: Probe, finding: Finding) -> str:
        """The reference that has the failing cases too; empty where one of them has none."""
        failed = [case for case in finding.cases if verdict_of(case) is Verdict.FAIL]
        names: list[str] = []
        with contextlib.suppress(*UNASKABLE):  # a broken model may raise where its kind is asked
            for case in failed:
                alike = next(self._alike(subject, probe, case), None)
                if alike is None:
                    return ""
                names.append(alike[0])
        return names[0] if failed and len(names) == len(failed) else ""

    def _alike(
        self, subject: Subject, probe: Probe, case: Measurement
    ) -> Iterator[tuple[str, Measurement]]:
        """Each reference of the model's kind that comes to the same verdict in the case, with what
        it gave.
        """
        asked = itertools.product(dict.fromkeys(_dtypes(subject)), REFERENCES)
        for dtype, (reference, belongs) in asked:
            settings = Settings(
                attn=subject.attn,
                dtype=dtype,
                device=str(subject.device),
                seed=subject.settings.seed,
            )
            # a reference of another kind is neither loaded nor asked
            shared = belongs(subject) and self._case(reference, settings, probe, case.name)
            if shared and verdict_of(shared) is verdict_of(case):
                yield reference, shared

    def _case(
        self, reference: str, settings: Settings, probe: Probe, name: str
    ) -> Measurement | None:
        """A case of a reference, if it warns or fails; None where it cannot be asked this way."""
        known = self._asked.setdefault((reference, settings, probe), {})
        if name not in known:
            known |= {name: None, **broken_cases(self._reference(reference, settings), probe, name)}
        return known[name]

    def _reference(self, reference: str, settings: Settings) -> Subject | None:
        key = (reference, settings)
        if key not in self._loaded:
            self._loaded[key] = _reference(reference, settings)
        return self._loaded[key]


def _reference(reference: str, settings: Settings) -> Subject | None:
    """A reference, or None where this library or these settings do not allow it."""
    try:
        return load(reference, settings)
    except (AttncheckError, Unsupported):
        return None


def broken_cases(subject: Subject | None, probe: Probe, name: str | None = None) -> Broken:
    """The cases of one probe that warn or fail on a model, by name: all, or at least this one."""
    if subject is None or any(not subject.capability(need) for need in probe.needs):
        return {}
    found: Broken = {}
    try:
        # what is found is remembered, whatever this run asks
        with choosing(Choice()), asking(None if name is None else (name,)):
            for case in measured_cases(probe, subject):
                if verdict_of(case) in BROKEN:
                    found[case.name] = case
    except UNASKABLE:
        return found
    return found


def shown_traps(probe: Probe) -> dict[str, str]:
    """The page of each trap of one probe, by its name, as the reference models show it now."""
    pages: dict[str, str] = {}
    for reference, _ in REFERENCES:
        for case in broken_cases(_reference(reference, Settings()), probe).values():
            if verdict_of(case) is not Verdict.WARN:
                continue
            name = trap_name(probe.name, case.name)
            pages.setdefault(name, PAGE.format(name=name, case=case.name, probe=probe.name))
            pages[name] += f"\n  {reference}: {describe(case)}"
    return pages


def trap_name(probe: str, case: str) -> str:
    """What `attncheck explain trap-NAME` calls a trap."""
    return f"{probe}-{re.sub('[^a-z0-9]+', '-', case.lower()).strip('-')}"


def amount(case: Measurement) -> float | None:
    """The number of a case: its largest difference, or what it counts."""
    return case.value if isinstance(case, Quantity) else case.max_abs


def _set_aside(probe: Probe, finding: Finding, traps: list[Trap]) -> Finding:
    """The finding judged without the cases of the traps; what decided it otherwise still does."""
    names = {trap.call for trap in traps}
    cases = tuple(case for case in finding.cases if case.name not in names)
    finding = replace(finding, cases=cases, traps=tuple(traps))
    if finding.verdict is not Verdict.WARN:
        return finding
    ruling = probe.judge(Evidence(measurements=cases, replay=finding.replay))
    if ruling.verdict is Verdict.SKIP:
        return replace(
            finding, verdict=Verdict.SKIP, summary=NOTHING_ELSE, skip_reason=NOTHING_ELSE
        )
    return replace(finding, verdict=ruling.verdict, summary=ruling.summary)
