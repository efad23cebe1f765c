"""All that is asked of one engine: against the twin on the same weights, then against itself."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, final

from attncheck.core.errors import TargetError, Unsupported
from attncheck.core.finding import Finding, skipped_finding
from attncheck.core.measurement import BrokenCall
from attncheck.core.settings import Settings
from attncheck.engines import against
from attncheck.engines.against import AgainstWeights
from attncheck.engines.engine import Engine, EngineError, EngineGone
from attncheck.engines.findings import engine_finding
from attncheck.engines.opening import opened, with_vocabulary
from attncheck.engines.rows import RowBudget
from attncheck.engines.self_check import SelfCheck
from attncheck.engines.tiny import add_old_keys, saved_tiny
from attncheck.engines.twin import Twin
from attncheck.targets.load import load
from attncheck.targets.target import Target, is_engine, parse

OWN = frozenset({"api", "served_model", "weights", "rate", "requests", "patience", "engine"})
"""Settings that are about the engine and not about its twin."""


@final
@dataclass
class EngineExamination:
    """One engine, with its twin if the weights are known."""

    engine: Engine
    twin: Twin | None
    settings: Settings
    tells: Callable[[str], None] = field(default=lambda what: None)
    note: str = ""

    @property
    def model(self) -> dict[str, Any]:
        """The `model` block of the report."""
        traits, twin = self.engine.traits, self.twin
        facts = twin.subject.facts.as_dict() if twin is not None else {"vocab": traits.vocab}
        return {**facts, "class": traits.facts.get("engine", type(self.engine).__name__)}

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know before the findings."""
        traits = self.engine.traits
        told = ", ".join(f"{name} {text}" for name, text in traits.facts.items() if text)
        lines = [each for each in (told, self.note) if each]
        if self.twin is None:
            words = "no weights given: compared with itself only, which hides a config read wrongly"
            lines.append(words)
        return tuple(lines)

    def findings(self) -> Iterator[Finding]:
        """The finding of each family of questions.

        Raises:
            EngineGone: the engine answers nothing any more; what was measured was yielded.
        """
        budget: RowBudget | None = None
        if self.twin is not None:
            self.tells(against.NAME)
            finding, budget = self._against(self.twin)
            yield finding
        yield from SelfCheck(self.engine, budget, self.tells).findings()

    def _against(self, twin: Twin) -> tuple[Finding, RowBudget | None]:
        if self.engine.traits.texts:
            reason = "the engine names tokens by text, so that its rows have no ids to compare"
            return skipped_finding(against.NAME, reason), None
        rounding = None if self.settings.dtype == "auto" else self.settings.dtype
        try:
            return AgainstWeights(self.engine, twin, rounding).examined()
        except EngineGone:
            raise
        except EngineError as error:
            return engine_finding(against.NAME, [BrokenCall("a request", note=str(error))]), None
        except Unsupported as reason:
            return skipped_finding(against.NAME, str(reason)), None


def asks_an_engine(text: str, settings: Settings) -> bool:
    """Whether a target is checked in an engine and not as a model of transformers."""
    return settings.engine is not None or is_engine(text)


@contextlib.contextmanager
def examined_in_engine(text: str, settings: Settings) -> Iterator[EngineExamination]:
    """The examination of a target while the block runs.

    Raises:
        TargetError: the engine or its weights cannot be opened.
        Unsupported: the engine does not claim this type of model.
    """
    target = parse(text)
    with contextlib.ExitStack() as stack:
        if target.kind in ("config", "builtin") and settings.engine is not None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            where: str | None = saved_tiny(target, settings, folder)
            engine, note = _of_tiny(stack, replace(target, where=folder), settings)
        else:
            known = None if target.kind in ("server", "factory") else target.where
            where, note = settings.weights or known, ""
            engine = stack.enter_context(opened(target, settings))
        twin = Twin(load(where, _of_twin(settings))) if where is not None else None
        if twin is not None:
            facts = twin.subject.facts
            engine = with_vocabulary(engine, facts.vocab, facts.context)
        yield EngineExamination(engine, twin, settings, note=note)


def _of_tiny(stack: contextlib.ExitStack, target: Target, settings: Settings) -> tuple[Engine, str]:
    """The engine on a tiny model; where it refuses the folder, with the keys of older releases.

    Raises:
        Unsupported: it refuses both.
    """
    try:
        return stack.enter_context(opened(target, settings)), ""
    except TargetError as error:
        reason = str(error)
    if not add_old_keys(target.where):
        raise Unsupported(reason)
    try:
        engine = stack.enter_context(opened(target, settings))
    except TargetError as error:
        raise Unsupported(str(error)) from error
    return engine, f"with the keys of transformers 4 in config.json, since without them: {reason}"


def _of_twin(settings: Settings) -> Settings:
    """How the twin is loaded: in float64, without what is said about the engine."""
    plain = {name: value for name, value in settings.changes().items() if name not in OWN}
    return Settings(**{**plain, "dtype": "float64"})


def compared_in_engine(
    left: str, right: str, settings: Settings, says: Callable[[str], None]
) -> tuple[str, Finding]:
    """The name of the engine on one side, and its finding against the model on the other.

    Raises:
        TargetError: both or neither of them is an engine, or one cannot be opened.
    """
    sides = [asks_an_engine(each, settings) for each in (left, right)]
    if all(sides):
        raise TargetError(f"{left}: and {right}: two engines: compare each with the weights")
    engine, weights = (left, right) if sides[0] else (right, left)
    says(f"opening {engine}")
    with examined_in_engine(engine, replace(settings, weights=weights)) as examination:
        assert examination.twin is not None
        says(f"comparing {engine}")
        return examination.engine.name, examination._against(examination.twin)[0]
