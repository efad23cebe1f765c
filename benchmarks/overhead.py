"""What attncheck costs beside the forwards it asks for, and what memory beside loading: ratios, both sides in one run.

    python benchmarks/overhead.py --model PATH [--json FILE] [--dtype float32] [--probe NAME …]

The bare side makes exactly the forwards that the probes made: same tokens per call, same filled cache behind each call.
Each side runs in a process of its own, so that its peak memory is its own; loading is not part of the times.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from typing import Any, NamedTuple

FIVE = ("future-token", "decode-paths", "position-reset", "document-leakage", "kv-repeat")


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def checked(model: str, dtype: str, probes: list[str]) -> dict[str, Any]:
    """Run the probes with their controls; note what every forward was given."""
    from attncheck import registry
    from attncheck.runner import ProbeFinished, run_probes
    from attncheck.settings import Settings
    from attncheck.subject.load import load

    subject = load(model, Settings(dtype=dtype))
    calls: list[Call] = []
    subject.door.model.register_forward_pre_hook(lambda m, a, k: calls.append(noted(m, k, a)), with_kwargs=True)
    chosen = [registry.load(name) for name in probes]
    started = time.perf_counter()
    verdicts = {e.finding.probe: e.finding.verdict.value for e in run_probes(subject, chosen) if isinstance(e, ProbeFinished)}
    return {"seconds": time.perf_counter() - started, "peak": peak_bytes(), "calls": calls, "verdicts": verdicts}


class Call(NamedTuple):
    """What one forward was: rows, new and cached tokens, whether for a gradient, in which dtype and implementation."""

    rows: int
    new: int
    cached: int
    gradient: bool
    dtype: str
    attn: str


def noted(model: Any, kwargs: dict[str, Any], args: tuple[Any, ...]) -> Call:
    import torch

    from attncheck.subject.compat import CACHE_NAMES, cached_length

    ids = kwargs.get("input_ids", args[0] if args else None)
    cached = max(cached_length(kwargs.get(name)) for name in CACHE_NAMES)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return Call(*ids.shape, cached, torch.is_grad_enabled(), dtype, model.config._attn_implementation)


def bare(model: str, dtype: str, calls: list[Call]) -> dict[str, Any]:
    """The same forwards without attncheck: a plain loop over the model, on a cache of the same length where there was one."""
    import torch

    from attncheck.settings import Settings
    from attncheck.subject.compat import cache_of
    from attncheck.subject.load import load

    subject = load(model, Settings(dtype=dtype))
    row = torch.tensor([list(subject.inputs.row)])
    row = row.repeat(1, -(-max(call.new + call.cached for call in calls) // row.shape[1]))
    spent, cache, held = 0.0, None, (0, 0, "")
    for call in calls:
        ids = row[:, call.cached : call.cached + call.new].expand(call.rows, -1)
        subject.model.to(getattr(torch, call.dtype))
        subject.model.set_attn_implementation(call.attn)
        if call.cached and held != (call.rows, call.cached, call.dtype):
            cache = prefilled(subject.model, row[:, : call.cached].expand(call.rows, -1))
        given = {str(subject.door.cache_name): cache} if call.cached else {}
        started = time.perf_counter()
        output = forward(subject.model, ids, call.gradient, given)
        spent += time.perf_counter() - started
        cache, held = cache_of(output), (call.rows, call.cached + call.new, call.dtype)
    return {"seconds": spent}


def forward(model: Any, ids: Any, gradient: bool, given: dict[str, Any]) -> Any:
    """One forward; where the call was for a gradient, with a backward pass to the input embedding."""
    import torch

    with torch.set_grad_enabled(gradient):
        output = model(input_ids=ids, use_cache=not gradient, **given)
        if gradient:
            torch.autograd.grad(output.logits.sum(), model.get_input_embeddings().weight)
    return output


def prefilled(model: Any, ids: Any) -> Any:
    import torch

    from attncheck.subject.compat import cache_of

    with torch.no_grad():
        return cache_of(model(input_ids=ids, use_cache=True))


def loaded(model: str, dtype: str) -> dict[str, Any]:
    """Load the model as a user would and run one forward: the memory that nothing can do without."""
    import torch
    from transformers import AutoModelForCausalLM

    where = {"gguf_file": model.rsplit("/", 1)[1]} if model.endswith(".gguf") else {}
    loaded_model = AutoModelForCausalLM.from_pretrained(model.rsplit("/", 1)[0] if where else model, **where)
    loaded_model = loaded_model.to(getattr(torch, dtype)).eval()
    with torch.no_grad():
        loaded_model(input_ids=torch.arange(3, 27)[None])
    return {"peak": peak_bytes()}


def apart(function: Any, *arguments: Any) -> Any:
    """Run a function in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json")
    parser.add_argument("--probe", action="append")
    options = parser.parse_args()
    probes = options.probe or list(FIVE)
    ours = apart(checked, options.model, options.dtype, probes)
    plain = apart(bare, options.model, options.dtype, ours["calls"])
    base = apart(loaded, options.model, options.dtype)
    result = {
        "ratio": ours["seconds"] / plain["seconds"],
        "memory_ratio": ours["peak"] / base["peak"],
        "passes": len(ours["calls"]),
        "seconds": ours["seconds"],
        "bare_seconds": plain["seconds"],
        "peak_mib": ours["peak"] / 2**20,
        "bare_peak_mib": base["peak"] / 2**20,
        "probes": probes,
        "verdicts": ours["verdicts"],
    }
    print(json.dumps(result, indent=1))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
