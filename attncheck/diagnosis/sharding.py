"""Whether sharding changed a model: what its processes compute together against the whole model,
which the first one holds.

The whole model computes while the others wait. Weights are put together and compared, then the
logits of a few ways of asking; where those differ, the first module whose output is not that of the
whole model is named. What the parts of a layer come to is told from fingerprints, which are sums of
the outputs: the fingerprints of parts add up as the parts do.

Axes: B batch, T positions, V vocabulary, K numbers kept for each position.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.attention.layers import layer_index
from attncheck.core.errors import Unsupported, first_line
from attncheck.core.finding import (
    Control,
    Evidence,
    Finding,
    Location,
    Measurement,
    Verdict,
    skipped,
    verdict_of,
    worst,
)
from attncheck.diagnosis.parts import (
    WholeForward,
    bias_of,
    first_apart,
    is_part,
    is_whole,
    outputs_of,
    parts_of,
    what_adds_up,
    whole_forward,
    whose,
)
from attncheck.distributed.ranks import agreed, by_first, failed_alone, gathered, working_on
from attncheck.model.digest import digests
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.padding import pad_rows
from attncheck.model.placement import is_sharded
from attncheck.model.subject import Subject
from attncheck.numerics.budget import Budget
from attncheck.numerics.module_outputs import Event, ModuleOutputs
from attncheck.probing import judge_cases
from attncheck.targets.sharded import wanted, whole_of, why_not_whole

NAME = "sharding"
CONTROL = "reduction-doubled"
SLACK = 1e-9


@final
@dataclass
class Sharding:
    """The sharded model beside the whole one, which only the first process holds.

    `joined` names the modules of which each process has a part of the weights, and all of what they
    put out.
    """

    subject: Subject
    whole: list[Subject] = field(default_factory=list)
    joined: list[str] = field(default_factory=list)

    def cases(self) -> Iterator[Measurement]:
        """The weights, then every way of asking."""
        device, reason = agreed("room for the whole model", self._room())
        if device is None:
            yield skipped("whole model", reason)
            return
        by_first("the whole model", lambda: self._load(device))
        yield self._weights()
        for name, spec in self.spec():
            yield self.case(name, spec)

    def spec(self) -> Iterator[tuple[str, ForwardSpec]]:
        """A plain row, a row in chunks on a cache, and rows of unequal length."""
        subject, tokens, length = (
            self.subject,
            self.subject.inputs.tokens,
            self.subject.inputs.length,
        )
        yield "one forward", ForwardSpec(tokens)
        if subject.can.cache:
            yield (
                "in chunks on a cache",
                ForwardSpec(tokens, chunks=(length // 3, length - length // 3 - 1, 1)),
            )
        if subject.can.reads_mask:
            yield "left-padded batch", pad_rows(subject).spec("left", salt=1)

    def case(self, name: str, spec: ForwardSpec) -> Measurement:
        """One way of asking, as it is in the process where it is worst."""
        got_BTV, mine = self.subject.logits(spec), outputs_of(self.subject, spec)
        right = by_first("the whole model", lambda: whole_forward(self.whole[0], spec))
        budget = _of_both(self.subject.budget, right)
        case = self.subject.compare(
            name,
            _real(got_BTV, spec),
            _real(right.logits_BTV.to(got_BTV.device), spec),
            budget=budget,
        )
        case = _worst(gathered("sharded vs whole", case))
        seen = gathered("what modules put out", mine)
        self.joined = self.joined or [
            name
            for name in _sharded_modules(self.subject.model)
            if is_whole((name, "out"), right.outputs, seen)
        ]
        event = first_apart(right.outputs, seen) if verdict_of(case) is Verdict.FAIL else None
        if event is None:
            return case
        module, words = self._told(event, right, seen, spec)
        return replace(
            case, module=module, note=f"first at {module}" + (f": {words}" if words else "")
        )

    def control(self) -> Control | None:
        """The plain case with the output of one reduction doubled, which has to fail."""
        if not self.joined:
            return None
        place = self.subject.model.get_submodule(self.joined[-1])
        spec = ForwardSpec(self.subject.inputs.tokens)
        self.subject.passes.drop(spec)
        try:
            with place.register_forward_hook(lambda module, args, output: output * 2):
                case = self.case("one forward", spec)
        finally:
            self.subject.passes.drop(spec)
        return Control(
            fault=CONTROL,
            detected=verdict_of(case) is Verdict.FAIL,
            max_abs=case.max_abs,
            case=case.name,
        )

    def _room(self) -> tuple[torch.device | None, str]:
        return why_not_whole(self.subject.model, (self.subject.device, torch.device("cpu")))

    def _load(self, device: torch.device) -> None:
        subject = self.subject
        whole = Subject.of(
            whole_of(subject.model, device),
            subject.name,
            settings=replace(subject.settings, tp=None),
            dtype=subject.dtype_name,
        )
        self.whole.append(whole.with_inputs(subject.inputs))

    def _weights(self) -> Measurement:
        """How many weights, put together from their parts, are not those of the whole model.

        That is a fault of what is saved from here; whether it is one of what is computed, the
        logits say.
        """
        mine = digests(self.subject.model)
        right = by_first("the weights", lambda: digests(self.whole[0].model))
        wrong = [name for name in right if name in mine and not _same(mine[name], right[name])]
        wrong = sorted(
            {name for each in gathered("wrong weights", wrong) for name in each},
            key=list(right).index,
        )
        note = (
            f"put together, these are not those of the whole model: {', '.join(wrong[:3])}"
            if wrong
            else ""
        )
        return Measurement(
            name="weights",
            expect="at-most",
            broken=Verdict.WARN,
            value=2.0 * len(wrong),
            limit=1.0,
            unit="weights",
            positions=1,
            note=note,
            module=wrong[0].rpartition(".")[0] if wrong else "",
        )

    def _told(
        self, event: Event, right: WholeForward, seen: Sequence[ModuleOutputs], spec: ForwardSpec
    ) -> tuple[str, str]:
        """The module at fault where this event is the first that is wrong, and what its parts come
        to, in words.
        """
        module = event[0] if event[1] == "out" else event[0].rpartition(".")[0] or event[0]
        bias = by_first("its bias", lambda: bias_of(self.whole[0].model, event[0]))
        words = what_adds_up(right.outputs, seen, event, bias)
        return (
            (module, words) if words else self._exchanged(event, right, seen, spec) or (module, "")
        )

    def _exchanged(
        self, event: Event, right: WholeForward, seen: Sequence[ModuleOutputs], spec: ForwardSpec
    ) -> tuple[str, str] | None:
        """The last module before this event, if processes hold each other's parts of what it puts
        out.
        """
        events = list(right.outputs)
        before = events[: events.index(event)]
        for each in reversed(
            [each for each in before if each[1] == "out" and is_part(each, right.outputs, seen)]
        ):
            name = each[0]
            parts = by_first("its parts", lambda: parts_of(self.whole[0], name, spec, len(seen)))  # noqa: B023
            order = [whose(of_rank[each].print_BTK, parts) for of_rank in seen]
            if None not in order and order != list(range(len(seen))):
                held = [
                    f"rank {rank} has the part of rank {other}"
                    for rank, other in enumerate(order)
                    if rank != other
                ]
                return name, ", ".join(held)
        return None


def sharding_findings(subject: Subject) -> list[Finding]:
    """Whether the sharded model is the whole one, where the model is sharded."""
    if not wanted(subject.settings):
        return []
    started = time.perf_counter()
    working_on(f"the check {NAME}")
    try:
        # rounding shrinks with a higher precision, and what sharding changed does not
        with subject.at(subject.higher_dtype()) as highest:
            found = Sharding(highest)
            cases = tuple(found.cases())
            control = (
                found.control() if all(verdict_of(case) is Verdict.PASS for case in cases) else None
            )
    except Unsupported as reason:
        return [
            Finding(probe=NAME, verdict=Verdict.SKIP, summary=str(reason), skip_reason=str(reason))
        ]
    except Exception as error:
        failed_alone(error)
        return [
            Finding(
                probe=NAME,
                verdict=Verdict.ERROR,
                summary=f"the comparison raised {first_line(error)}",
            )
        ]
    return [replace(_finding(subject, cases, control), seconds=time.perf_counter() - started)]


def _finding(subject: Subject, cases: tuple[Measurement, ...], control: Control | None) -> Finding:
    ruling = judge_cases(Evidence(measurements=cases))
    finding = Finding(probe=NAME, verdict=ruling.verdict, summary=ruling.summary, cases=cases)
    if ruling.verdict is Verdict.SKIP:
        return replace(finding, skip_reason=ruling.summary)
    if control is not None and not control.detected:
        finding = finding.with_verdict(Verdict.VACUOUS, f"with {CONTROL} planted it passes as well")
    named = next(
        (case for case in cases if verdict_of(case) is not Verdict.PASS and case.module), None
    )
    return replace(
        finding,
        controls=(control,) if control else (),
        location=_location(subject, named) if named else None,
    )


def _location(subject: Subject, case: Measurement) -> Location:
    module = subject.model.get_submodule(case.module)
    return Location(
        module=case.module,
        layer=layer_index(module, case.module),
        query_position=case.first_position,
    )


def _of_both(budget: Budget, right: WholeForward) -> Budget:
    return replace(
        budget,
        value=budget.value + right.budget,
        source=f"{budget.source}, and as much of the whole model",
    )


def _real(logits_BTV: Tensor, spec: ForwardSpec) -> Tensor:
    """Padded places count for nothing."""
    rows = getattr(spec.mask, "rows", None)
    if rows is None:
        return logits_BTV
    return logits_BTV.masked_fill(
        ~torch.tensor(rows, dtype=torch.bool, device=logits_BTV.device)[..., None], 0.0
    )


def _worst(cases: Any) -> Measurement:
    order = [verdict_of(case) for case in cases]
    found: Measurement = cases[order.index(worst(order))]
    return found


def _sharded_modules(model: nn.Module) -> list[str]:
    """The modules of whose own weights each process has a part."""
    own = ((name, module.parameters(recurse=False)) for name, module in model.named_modules())
    return [name for name, weights in own if any(map(is_sharded, weights))]


def _same(left: Tensor, right: Tensor) -> bool:
    """Equal sums, beside the sum of sizes (the weighted one beside its own largest)."""
    size = max(float(left[1]), float(right[1]), 1e-30)
    limits = (
        torch.tensor([size, size, max(float(left[2]), 1e-30), 8191 * size], dtype=torch.float64)
        * SLACK
    )
    return bool(((left - right).abs() <= limits).all())
