"""One run of the probes with their controls and diagnoses, and the same forwards without attncheck.

The bare side makes exactly the forwards that the probes made: the same number of tokens on as full
a cache, in the same dtype and attention implementation, with a backward pass where the call was for
a gradient. Loading is not part of the times.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from benchmarks.models import Shape, subject_of
from benchmarks.peaks import meter


class Call(NamedTuple):
    """One forward: how many tokens are new and cached, and what it was for."""

    rows: int
    new: int
    cached: int
    filling: bool
    gradient: bool
    dtype: str
    attn: str


@final
@dataclass
class Run:
    """A run of probes on one model; `seconds`, `calls` and `peaks` (in bytes) are per probe."""

    weights: int
    numbers: dict[str, int]
    calls: list[list[Call]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    verdicts: dict[str, str] = field(default_factory=dict)

    @property
    def forwards(self) -> int:
        return sum(map(len, self.calls))

    @property
    def beyond(self) -> int:
        """The peak of the whole run beyond the weights and one forward."""
        return max(self.peaks.values())

    @property
    def greediest(self) -> str:
        """The probe with the highest peak."""
        return max(self.peaks, key=lambda name: self.peaks[name])


def checked(source: str | Shape, dtype: str, probes: list[str], length: int | None = None) -> Run:
    """Run the probes with controls and diagnoses; note each forward and each peak of memory."""
    from attncheck.core import registry
    from attncheck.core.allocator import keep_threshold, return_freed_memory
    from attncheck.diagnosis.diagnose import Diagnoser
    from attncheck.run.runner import ProbeFinished, run_probes

    keep_threshold()  # as `attncheck run` does
    subject = subject_of(source, dtype, length)
    made: list[Call] = []
    one_forward(subject)
    watch = meter(subject.device.type)
    one_forward(subject)
    base = watch.peak()
    hook = subject.forward_adapter.model.register_forward_pre_hook(
        lambda m, a, k: made.append(noted(subject, k, a)), with_kwargs=True
    )
    run = Run(sum(each.nbytes for each in subject.model.parameters()), numbers_of(subject))
    chosen = [registry.load(name) for name in probes]
    watch.restart()
    started = time.perf_counter()
    for event in run_probes(subject, chosen, diagnose=Diagnoser()):
        if isinstance(event, ProbeFinished):
            name = event.finding.probe
            run.seconds[name] = time.perf_counter() - started
            run.peaks[name], run.verdicts[name] = (
                max(0, watch.peak() - base),
                event.finding.verdict.value,
            )
            run.calls.append(list(made))
            made.clear()
            return_freed_memory()
            watch.restart()
            started = time.perf_counter()
    hook.remove()
    return run


def one_forward(subject: Any) -> None:
    import torch

    with torch.no_grad():
        subject.model(input_ids=subject.passes.ids(subject.inputs.tokens))


def numbers_of(subject: Any) -> dict[str, int]:
    """The numbers of a model that the formula for the memory uses."""
    facts = subject.facts
    heads = facts.kv_heads or facts.heads or 1
    return {
        "tokens": subject.inputs.length,
        "vocabulary": facts.vocab,
        "layers": facts.layers or 1,
        "heads": facts.heads or 1,
        "kv_width": heads * (facts.head_dim or 1),
        "width": int(getattr(subject.text_config, "hidden_size", 0) or 0),
        "modules": sum(1 for _ in subject.model.modules()),
        "largest": max(each.numel() for each in subject.model.parameters()),
        "bytes": subject.dtype.itemsize,
    }


def noted(subject: Any, kwargs: dict[str, Any], args: tuple[Any, ...]) -> Call:
    import torch

    from attncheck.model.compat import CACHE_NAMES, cached_length

    ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
    rows, new = ids.shape
    cached = max(cached_length(kwargs.get(name)) for name in CACHE_NAMES)
    filling = kwargs.get("use_cache") is not False
    gradient = torch.is_grad_enabled()
    return Call(
        rows,
        new,
        cached,
        filling,
        gradient,
        str(subject.dtype).removeprefix("torch."),
        str(subject.attn),
    )


def bare(
    source: str | Shape, dtype: str, calls: list[list[Call]], length: int | None = None
) -> list[float]:
    """Seconds of the same forwards without attncheck, probe by probe."""
    import torch

    subject = subject_of(source, dtype, length)
    one_forward(subject)
    row = torch.tensor([list(subject.inputs.row)], device=subject.device)
    row = row.repeat(
        1, -(-max(call.new + call.cached for made in calls for call in made) // row.shape[1])
    )
    replay = Replay(subject.model, str(subject.forward_adapter.cache_name), row)
    return [sum(map(replay.seconds, made)) for made in calls]


@final
class Replay:
    """Runs forwards one after the other; filling a cache is not part of the times."""

    def __init__(self, model: Any, cache_name: str, row: Any) -> None:
        self.model, self.cache_name, self.row = model, cache_name, row
        self.cache: Any = None
        self.held: tuple[int, int, str] = (0, 0, "")

    def seconds(self, call: Call) -> float:
        import torch

        from attncheck.model.compat import cache_of

        ids = self.row[:, call.cached : call.cached + call.new].expand(call.rows, -1)
        self.model.to(getattr(torch, call.dtype))
        if self.model.config._attn_implementation != call.attn:
            self.model.set_attn_implementation(call.attn)
        if call.cached and self.held != (call.rows, call.cached, call.dtype):
            with torch.no_grad():
                self.cache = cache_of(
                    self.model(
                        input_ids=self.row[:, : call.cached].expand(call.rows, -1), use_cache=True
                    )
                )
        given = {self.cache_name: self.cache} if call.cached else {}
        started = time.perf_counter()
        output = self._forward(ids, call, given)
        spent = time.perf_counter() - started
        self.cache, self.held = cache_of(output), (call.rows, call.cached + call.new, call.dtype)
        return spent

    def _forward(self, ids: Any, call: Call, given: dict[str, Any]) -> Any:
        import torch

        with torch.set_grad_enabled(call.gradient):
            output = self.model(input_ids=ids, use_cache=call.filling or bool(call.cached), **given)
            if call.gradient:
                torch.autograd.grad(output.logits.sum(), self.model.get_input_embeddings().weight)
            if output.logits.is_cuda:
                torch.cuda.synchronize()
        return output
