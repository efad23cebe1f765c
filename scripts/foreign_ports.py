"""Measure `compare` over the ports in tests/porting/foreign, and write docs/foreign-ports.md.

    python scripts/foreign_ports.py [--dtype bfloat16] [--seconds N] [FAMILY ...]

What was measured is kept in build/foreign.jsonl; a second start goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from porting.foreign import MODULES, faults, foreign  # noqa: E402

from attncheck.compare.sides import compare_subjects  # noqa: E402
from attncheck.model.subject import Subject  # noqa: E402
from attncheck.targets.functions import as_module  # noqa: E402

KEPT = ROOT / "build" / "foreign.jsonl"
PAGE = ROOT / "docs" / "foreign-ports.md"
NAMES = {
    "bias-in-weights": "router-bias",
    "embeddings-unscaled": "embedding-scale",
    "eps": "norm-eps",
    "experts-reversed": "expert-order",
    "gate-up-swapped": "gate-up-exchanged",
    "gelu-exact": "activation",
    "gelu-tanh": "activation",
    "gqa-tiled": "kv-groups-tiled",
    "groups-ignored": "router-groups",
    "head-untied": "head-untied",
    "keys-one-ahead": "position-offset",
    "logit-scale": "logit-scale",
    "mask-off-by-one": "mask-off-by-one",
    "no-final-cap": "logit-cap",
    "no-final-norm": "norm-missing",
    "no-k-bias": "bias-missing",
    "no-norm-bias": "bias-missing",
    "no-out-bias": "bias-missing",
    "no-post-norm": "norm-missing",
    "no-q-latent-norm": "norm-missing",
    "no-q-norm": "qk-norm",
    "no-qk-norm": "qk-norm",
    "no-qkv-bias": "bias-missing",
    "no-routed-scale": "router-scale",
    "no-scale": "softmax-scale",
    "no-shared-expert": "shared-expert-missing",
    "no-softcap": "softcap-missing",
    "no-window": "window-ignored",
    "norm-after-rope": "qk-norm",
    "norm-missing": "norm-missing",
    "norm-plain": "norm-offset",
    "one-plus-norm": "norm-offset",
    "parallel": "parallel-block",
    "positions-from-one": "position-offset",
    "pre-norm": "norm-placement",
    "proj-transposed": "weight-transposed",
    "qk-norm-per-head": "qk-norm",
    "qkv-by-blocks": "qkv-order",
    "residual-after-norm": "residual",
    "residual-of-norm": "residual",
    "rms-norm": "norm-kind",
    "rope-all": "rotary-width",
    "rope-base": "rotary-base",
    "rope-direction": "rotary-direction",
    "rope-halves": "rotary-pairing",
    "rope-interleaved": "rotary-pairing",
    "rope-width": "rotary-width",
    "router-not-normalised": "router-normalisation",
    "scale": "softmax-scale",
    "scale-of-head": "softmax-scale",
    "scale-without-rope": "softmax-scale",
    "sequential": "parallel-block",
    "silu-to-gelu": "activation",
    "softmax-half": "lower-precision",
    "window-off-by-one": "window-off-by-one",
    "window-plus-one": "window-off-by-one",
    "windows-exchanged": "window-layers-swapped",
    "wo-transposed": "weight-transposed",
}
OUTSIDE = ("embedding-scale", "head-untied", "logit-cap", "logit-scale")
LATER = {"no-post-norm": 2, "norm-missing": 1, "wo-transposed": 1}


def measured(family: str, fault: str, dtype: str) -> dict[str, Any]:
    """What `compare` says of one port as plain data."""
    start = time.process_time()
    ours, theirs = foreign(family, fault)
    one = Subject.of(ours, family, dtype=dtype)
    other = Subject.of(as_module(theirs), "port", dtype=dtype)
    found = compare_subjects(one, other)
    named = found.explanation.faults if found.explanation and found.verdict == "different" else ()
    return {
        "family": family,
        "fault": fault,
        "dtype": dtype,
        "verdict": found.verdict,
        "names": [each.name for each in named],
        "layers": [each.layer for each in named],
        "sentences": [each.sentence for each in named],
        "reason": found.explanation.reason if found.explanation else "",
        "seconds": round(time.process_time() - start, 1),
    }


def right(entry: dict[str, Any]) -> bool:
    """Whether the fault, and nothing else, was named."""
    return set(entry["names"]) == {NAMES[entry["fault"]]}


def placed(entry: dict[str, Any]) -> bool:
    """Whether the first layer that has the fault was said."""
    if not entry["layers"]:
        return False
    outside = NAMES[entry["fault"]] in OUTSIDE or entry["fault"] in (
        "no-final-norm",
        "positions-from-one",
    )
    first = 1 if entry["family"] == "deepseek_v3" and "router" in NAMES[entry["fault"]] else 0
    first = 1 if entry["fault"] == "no-shared-expert" else LATER.get(entry["fault"], first)
    return bool(entry["layers"][0] == (None if outside else first))


def page(entries: list[dict[str, Any]]) -> str:
    """docs/foreign-ports.md."""
    single = [each for each in entries if each["fault"]]
    healthy = [each for each in entries if not each["fault"]]
    calm = sum(each["verdict"] in ("rounding", "identical") for each in healthy)
    wrong = sum(bool(each["names"]) and not right(each) for each in single)
    lines = [
        "# Foreign ports: what `compare` says of ports that it was not developed against",
        "",
        "Made by `python scripts/foreign_ports.py`. The ports in `tests/porting/foreign` were written in ten",
        "styles of code without a look at how `compare` names faults. Before anything was mended for them,",
        "29 of 66 faults were named in float32, one of them with a second, wrong name.",
        "",
        f"- correct ports that are rounding: {calm} of {len(healthy)}",
        f"- faults named: {sum(map(right, single))} of {len(single)}; placed:"
        f" {sum(map(placed, single))}; named wrongly: {wrong}",
        "",
        "| port | fault | dtype | verdict | named | one sentence |",
        "|---|---|---|---|---|---|",
    ]
    for each in sorted(entries, key=lambda e: (e["family"], e["fault"], e["dtype"])):
        said = each["sentences"][0] if each["sentences"] else each["reason"] or "-"
        names = ", ".join(f"`{name}`" for name in each["names"]) or "-"
        fault = each["fault"] or "(correct)"
        lines.append(
            f"| {each['family']} | {fault} | {each['dtype']} | {each['verdict']} | {names} | {said} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what is missing, within the seconds given, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", default=list(MODULES))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    KEPT.parent.mkdir(exist_ok=True)
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    entries = [json.loads(line) for line in lines]
    done = {(each["family"], each["fault"], each["dtype"]) for each in entries}
    start = time.time()
    for family in options.families:
        for fault in ("", *faults(family)):
            late = time.time() - start > options.seconds
            if late or (family, fault, options.dtype) in done:
                continue
            with torch.no_grad():
                entries.append(measured(family, fault, options.dtype))
            with KEPT.open("a") as file:
                file.write(json.dumps(entries[-1]) + "\n")
    PAGE.write_text(page(entries))


if __name__ == "__main__":
    main()
