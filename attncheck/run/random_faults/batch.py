"""Many random faults over many targets. A file of JSON lines keeps what was tried, so that a long
batch runs in pieces: a later run with the same file goes on where the one before ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

from attncheck.core import registry
from attncheck.core.errors import TargetError, first_line
from attncheck.core.settings import Settings
from attncheck.run.random_faults.parts import parse
from attncheck.run.random_faults.trial import Trial, Trials
from attncheck.targets.load import load

TARGETS = tuple(
    f"config:{name}"
    for name in (
        "llama",
        "bloom",
        "falcon",
        "gptj",
        "codegen",
        "gpt2",
        "gpt_neox",
        "opt",
        "deepseek_v3",
        "gemma2",
        "gemma3_text",
        "mistral",
        "qwen2",
        "qwen3_moe",
        "llama4_text",
        "gpt_oss",
        "cohere2",
        "t5",
        "bart",
        "mamba2",
        "bamba",
        "recurrent_gemma",
        "qwen3_next",
        "phi3",
    )
)
"""Where random faults are injected unless targets are named: attention at the library's interface
and inline, windows and chunks, latent keys, encoders, recurrent states.
"""


@final
@dataclass(frozen=True)
class Batch:
    """`count` random faults, dealt out to the targets in turn, numbered from 0 in each: the first
    ones of a target are the same in a batch of any size.
    """

    targets: Sequence[str]
    count: int
    settings: Settings
    probes: Sequence[str]
    file: Path | None = None

    def run(self) -> Iterator[Trial]:
        """Every trial in the order of the targets: known ones from the file, others now."""
        known = {(each.target, each.number): each for each in read(self.file)}
        for place, target in enumerate(self.targets):
            numbers = range(len(range(place, self.count, len(self.targets))))
            yield from (known[target, each] for each in numbers if (target, each) in known)
            left = [each for each in numbers if (target, each) not in known]
            for trial in self._new(target, left) if left else ():
                self._keep(trial)
                yield trial

    def _new(self, target: str, numbers: Sequence[int]) -> Iterator[Trial]:
        try:
            trials = opened(target, self.settings, self.probes)
        except TargetError as error:
            reasons = (f"not loaded: {first_line(error)}" for _ in numbers)
            for number, reason in zip(numbers, reasons, strict=True):
                yield Trial(target=target, number=number, fault=None, reason=reason)
            return
        yield from map(trials.numbered, numbers)

    def _keep(self, trial: Trial) -> None:
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(trial.as_dict(), default=str) + "\n")


def opened(target: str, settings: Settings, probes: Sequence[str]) -> Trials:
    """A target with all that trials need of it.

    Raises:
        TargetError: it cannot be loaded.
    """
    loaded = [registry.load(name) for name in probes]
    return Trials(load(target, settings), loaded, settings.seed)


def read(file: Path | None) -> list[Trial]:
    """The trials that a file of JSON lines keeps."""
    if file is None or not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines()
    return [_trial(json.loads(line)) for line in lines if line.strip()]


def _trial(data: dict[str, Any]) -> Trial:
    known = {each.name: data[each.name] for each in fields(Trial)}
    fault = parse(data["fault"]) if data["fault"] else None
    return Trial(**{**known, "fault": fault, "said": tuple(data["said"])})
