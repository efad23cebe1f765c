"""A sharded model beside the whole one, which only rank 0 holds.

Axes: B batch, T positions, V vocabulary, K numbers kept for each position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.probing import (
    AtMost,
    Budget,
    Cause,
    Event,
    ForwardSpec,
    Measurement,
    ModuleOutputs,
    Subject,
    Verdict,
    digests,
    is_sharded,
    parts,
    ranks,
    same_digest,
    sharded,
    skipped,
    verdict_of,
    without_padding,
    worst,
)

SLACK = 1e-9
Outputs = Sequence[ModuleOutputs]


@final
@dataclass
class BesideWhole:
    """The sharded model beside the whole one, which only rank 0 holds.

    `joined` names the modules of which each process has a part of the weights and the whole output.
    """

    subject: Subject
    whole: list[Subject] = field(default_factory=list)
    joined: list[str] = field(default_factory=list)

    def load(self) -> Measurement | None:
        """Load the whole model into rank 0; a skipped case where there is no room for it."""
        subject = self.subject
        devices = (subject.device, torch.device("cpu"))
        found = sharded.why_not_whole(subject.model, devices)
        device, reason = ranks.agreed("room for the whole model", found)
        if device is None:
            return skipped("whole model", reason)
        ranks.by_first("the whole model", lambda: self._load(device))
        return None

    def case(self, name: str, spec: ForwardSpec) -> Measurement:
        """One forward, as it is in the process where it differs most."""
        got_BTV, mine = self.subject.logits(spec), parts.outputs_of(self.subject, spec)
        right = ranks.by_first("the whole model", lambda: parts.whole_forward(self.whole[0], spec))
        budget = _of_both(self.subject.budget, right)
        own = self.subject.compare(
            name,
            without_padding(got_BTV, spec),
            without_padding(right.logits_BTV.to(got_BTV.device), spec),
            budget=budget,
        )
        case = _worst(ranks.gathered("sharded vs whole", own))
        seen = ranks.gathered("what modules put out", mine)
        self.joined = self.joined or [
            name
            for name in _sharded_modules(self.subject.model)
            if parts.is_whole((name, "out"), right.outputs, seen)
        ]
        event = parts.first_apart(right.outputs, seen) if verdict_of(case) is Verdict.FAIL else None
        if event is None:
            return case
        module, words = self._told(event, right, seen, spec)
        note = f"first at {module}" + (f": {words}" if words else "")
        return replace(case, cause=Cause(module=module), note=note)

    def _load(self, device: torch.device) -> None:
        subject = self.subject
        whole = Subject.of(
            sharded.whole_of(subject.model, device),
            subject.name,
            settings=replace(subject.settings, tp=None),
            dtype=subject.dtype_name,
        )
        self.whole.append(whole.with_inputs(subject.inputs))

    def weights(self) -> Measurement:
        """How many weights, put together from their parts, differ from the whole model's.

        A checkpoint saved from this model would be wrong; the logits tell whether the model is.
        """
        mine = digests(self.subject.model)
        right = ranks.by_first("the weights", lambda: digests(self.whole[0].model))
        held = [name for name in right if name in mine]
        here = [name for name in held if not same_digest(mine[name], right[name], SLACK)]
        found = {name for each in ranks.gathered("wrong weights", here) for name in each}
        wrong = sorted(found, key=list(right).index)
        note = f"put together, these are not those of the whole model: {', '.join(wrong[:3])}"
        return AtMost(
            "weights",
            2.0 * len(wrong),
            "weights",
            limit=1.0,
            broken=Verdict.WARN,
            note=note if wrong else "",
            cause=Cause(module=wrong[0].rpartition(".")[0] if wrong else ""),
        )

    def _told(
        self, event: Event, right: parts.WholeForward, outputs: Outputs, spec: ForwardSpec
    ) -> tuple[str, str]:
        """The module behind the first event that differs, and what its parts add up to."""
        module = event[0] if event[1] == "out" else event[0].rpartition(".")[0] or event[0]
        bias = ranks.by_first("its bias", lambda: parts.bias_of(self.whole[0].model, event[0]))
        words = parts.what_adds_up(right.outputs, outputs, event, bias)
        if words:
            return module, words
        return self._exchanged(event, right, outputs, spec) or (module, "")

    def _exchanged(
        self, event: Event, right: parts.WholeForward, outputs: Outputs, spec: ForwardSpec
    ) -> tuple[str, str] | None:
        """The last module before this event of whose output processes hold each other's parts."""
        events, size = list(right.outputs), len(outputs)
        for each in reversed(events[: events.index(event)]):
            if each[1] != "out" or not parts.is_part(each, right.outputs, outputs):
                continue
            pieces = ranks.by_first("its parts", partial(self._slices, each[0], spec, size))
            order = [parts.whose(of_rank[each].print_BTK, pieces) for of_rank in outputs]
            if None not in order and order != list(range(size)):
                moved = ((rank, other) for rank, other in enumerate(order) if rank != other)
                words = (f"rank {rank} has the part of rank {other}" for rank, other in moved)
                return each[0], ", ".join(words)
        return None

    def _slices(self, name: str, spec: ForwardSpec, count: int) -> list[Tensor]:
        return parts.parts_of(self.whole[0], name, spec, count)


def _of_both(budget: Budget, right: parts.WholeForward) -> Budget:
    source = f"{budget.source}, and as much of the whole model"
    return replace(budget, value=budget.value + right.budget, source=source)


def _worst(cases: Any) -> Measurement:
    order = [verdict_of(case) for case in cases]
    found: Measurement = cases[order.index(worst(order))]
    return found


def _sharded_modules(model: nn.Module) -> list[str]:
    """The modules of whose own weights each process has a part."""
    own = ((name, module.parameters(recurse=False)) for name, module in model.named_modules())
    return [name for name, weights in own if any(map(is_sharded, weights))]
