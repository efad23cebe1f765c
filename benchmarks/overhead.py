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
from typing import Any

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
    calls: list[tuple[int, int, int]] = []
    subject.door.model.register_forward_pre_hook(lambda m, a, k: calls.append(shape_of(k, a)), with_kwargs=True)
    chosen = [registry.load(name) for name in probes]
    started = time.perf_counter()
    verdicts = {e.finding.probe: e.finding.verdict.value for e in run_probes(subject, chosen) if isinstance(e, ProbeFinished)}
    return {"seconds": time.perf_counter() - started, "peak": peak_bytes(), "calls": calls, "verdicts": verdicts}


def shape_of(kwargs: dict[str, Any], args: tuple[Any, ...]) -> tuple[int, int, int]:
    """(rows, new tokens, cached tokens) of a call."""
    from attncheck.subject.compat import CACHE_NAMES, cached_length

    ids = kwargs.get("input_ids", args[0] if args else None)
    return int(ids.shape[0]), int(ids.shape[1]), max(cached_length(kwargs.get(name)) for name in CACHE_NAMES)


def bare(model: str, dtype: str, calls: list[tuple[int, int, int]]) -> dict[str, Any]:
    """The same forwards without attncheck: a plain loop over the model, on a cache of the same length where there was one."""
    import torch

    from attncheck.settings import Settings
    from attncheck.subject.compat import cache_of
    from attncheck.subject.load import load

    subject = load(model, Settings(dtype=dtype))
    row = torch.tensor([list(subject.inputs.row)])
    longest = max(new + cached for _, new, cached in calls)
    row = row.repeat(1, -(-longest // row.shape[1]))
    spent, cache, held = 0.0, None, 0
    with torch.no_grad():
        for rows, new, cached in calls:
            ids = row[:, cached : cached + new].expand(rows, -1)
            if cached and held != cached:
                cache = prefilled(subject.model, row[:, :cached].expand(rows, -1))
            given = {str(subject.door.cache_name): cache} if cached else {}
            started = time.perf_counter()
            output = subject.model(input_ids=ids, use_cache=True, **given)
            spent += time.perf_counter() - started
            cache, held = cache_of(output), cached + new
    return {"seconds": spent}


def prefilled(model: Any, ids: Any) -> Any:
    from attncheck.subject.compat import cache_of

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
