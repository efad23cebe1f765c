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
from porting.foreign.expected import EXPECTED  # noqa: E402

from attncheck.compare.sides import compare_subjects  # noqa: E402
from attncheck.model.subject import Subject  # noqa: E402
from attncheck.targets.functions import as_module  # noqa: E402

KEPT = ROOT / "build" / "foreign.jsonl"
PAGE = ROOT / "docs" / "foreign-ports.md"
NAMES = {
    "alibi-missing": "alibi-missing",
    "alibi-scaled": "alibi-slopes",
    "alibi-sign": "alibi-sign",
    "all-nope-l1": "rotary-missing",
    "alpha-one": "activation",
    "attn-half": "residual-scale",
    "attn-scale-default": "softmax-scale",
    "bias-in-weights": "router-bias",
    "bias-q-l1": "bias-missing",
    "cap-added": "logit-cap",
    "causal": "causal-mask-unexpected",
    "down-bias-unweighted": "(no name)",
    "down-from-layer-0": "weight-exchanged",
    "embed-scale-forgotten": "embedding-scale",
    "embed-scale-leaks": "weight-scale",
    "embeddings-unscaled": "embedding-scale",
    "eps": "norm-eps",
    "eps-1e-5": "norm-eps",
    "eps-outside": "norm-eps",
    "experts-reversed": "expert-order",
    "factor-4": "rotary-scaling",
    "fc-bias-l1": "bias-missing",
    "fc2-bias-l2": "bias-missing",
    "gate-up-order": "gate-up-exchanged",
    "gate-up-swapped": "gate-up-exchanged",
    "gelu": "activation",
    "gelu-erf": "activation",
    "gelu-exact": "activation",
    "gelu-tanh": "activation",
    "gqa-tiled": "kv-groups-tiled",
    "groups-ignored": "router-groups",
    "head-gelu-skipped": "activation",
    "head-own": "head-untied",
    "head-untied": "head-untied",
    "k-bias-in-v-l1": "bias-exchanged",
    "k-not-permuted": "rows-permuted",
    "keys-one-ahead": "position-offset",
    "kv-groups": "kv-groups-tiled",
    "kv-swapped-in-split": "qkv-order",
    "kv-tiled-l1": "kv-groups-tiled",
    "last-layer-skipped": "layer-skipped",
    "last-norm-twice": "norm-doubled",
    "layers-swapped": "layers-exchanged",
    "linear-forgotten": "rotary-scaling",
    "ln-before-residual-l1": "norm-placement",
    "ln-bias-l2": "bias-missing",
    "logit-scale": "logit-scale",
    "logits-multiplied": "logit-scale",
    "mask-off-by-one": "mask-off-by-one",
    "mlp-before": "(no name)",
    "mlp-reads-x": "norm-missing",
    "mlp-swapped-l2": "gate-up-exchanged",
    "no-concentration": "rotary-scaling",
    "no-decoder-bias": "bias-missing",
    "no-embed-norm": "norm-missing",
    "no-embed-scale": "embedding-scale",
    "no-final-cap": "logit-cap",
    "no-final-norm": "norm-missing",
    "no-head-bias": "bias-missing",
    "no-head-norm": "norm-missing",
    "no-k-bias": "bias-missing",
    "no-norm-bias": "bias-missing",
    "no-out-bias": "bias-missing",
    "no-post-norm": "norm-missing",
    "no-q-latent-norm": "norm-missing",
    "no-q-norm": "qk-norm",
    "no-qk-norm": "qk-norm",
    "no-qkv-bias": "bias-missing",
    "no-residual-scale": "residual-scale",
    "no-routed-scale": "router-scale",
    "no-scale": "softmax-scale",
    "no-scaling": "rotary-scaling",
    "no-second-residual-l1": "residual",
    "no-shared-expert": "shared-expert-missing",
    "no-softcap": "softcap-missing",
    "no-up-one": "up-offset",
    "no-window": "window-ignored",
    "nope-rotated": "rotary-unexpected",
    "norm-after-rope": "qk-norm",
    "norm-eps": "norm-eps",
    "norm-fp-eps": "norm-eps",
    "norm-half": "lower-precision",
    "norm-missing": "norm-missing",
    "norm-plain": "norm-offset",
    "o-transposed": "weight-transposed",
    "one-norm": "norm-shared",
    "one-plus-norm": "norm-offset",
    "one-rope": "rotary-scaling",
    "parallel": "parallel-block",
    "pos-no-offset": "position-offset",
    "pos-offset": "position-offset",
    "positions-from-one": "position-offset",
    "positions-from-zero": "position-offset",
    "positions-one": "position-offset",
    "post-ffn-norm-missing-l1": "norm-missing",
    "pre-norm": "norm-placement",
    "proj-transposed": "weight-transposed",
    "proj-transposed-l2": "weight-transposed",
    "q-bias-l2": "bias-missing",
    "q-k-exchanged-l2": "qkv-order",
    "q-permuted-l1": "rows-permuted",
    "qk-norm-per-head": "qk-norm",
    "qk-norm-plain": "norm-offset",
    "qkv-blocks": "qkv-order",
    "qkv-by-blocks": "qkv-order",
    "qkv-contiguous": "qkv-order",
    "qkv-not-interleaved": "qkv-order",
    "relu": "activation",
    "res-scale-on-stream": "residual-scale",
    "residual-after-ln": "residual",
    "residual-after-norm": "residual",
    "residual-attn-only": "residual-scale",
    "residual-of-norm": "residual",
    "residual-of-norm-l1": "residual",
    "rms-norm": "norm-kind",
    "rope-all": "rotary-width",
    "rope-base": "rotary-base",
    "rope-dim-12": "rotary-width",
    "rope-direction": "rotary-direction",
    "rope-halves": "rotary-pairing",
    "rope-interleaved": "rotary-pairing",
    "rope-on-last": "rotary-channels",
    "rope-one-position-late": "position-offset",
    "rope-theta": "rotary-base",
    "rope-width": "rotary-width",
    "router-before-topk": "router-normalisation",
    "router-bias-dropped": "bias-missing",
    "router-not-normalised": "router-normalisation",
    "scale": "softmax-scale",
    "scale-head-dim": "softmax-scale",
    "scale-hidden": "softmax-scale",
    "scale-of-head": "softmax-scale",
    "scale-on-key-too": "softmax-scale",
    "scale-without-rope": "softmax-scale",
    "sequential": "parallel-block",
    "silu-on-both": "activation",
    "silu-to-gelu": "activation",
    "sinks-dropped": "sink-missing",
    "slopes-pow2": "alibi-slopes",
    "slopes-zero-based": "alibi-slopes",
    "softmax-axis": "(no name)",
    "softmax-half": "lower-precision",
    "swiglu-halves": "gate-up-layout",
    "token-type-missing": "token-type-missing",
    "truncate": "rotary-scaling",
    "up-of-layer-0": "weight-exchanged",
    "v-head-order": "rows-permuted",
    "v-heads-reversed": "rows-permuted",
    "v-rows-as-k": "qkv-order",
    "window-odd-layers": "window-layers-swapped",
    "window-off-by-one": "window-off-by-one",
    "window-on-wrong": "window-layers-swapped",
    "window-plus-one": "window-off-by-one",
    "windows-exchanged": "window-layers-swapped",
    "wo-transposed": "weight-transposed",
}
OUTSIDE = ("embedding-scale", "head-untied", "logit-cap", "logit-scale", "norm-doubled")
OUTER_FAULTS = (
    "embed-scale-leaks",
    "eps-1e-5",
    "head-gelu-skipped",
    "no-decoder-bias",
    "no-embed-norm",
    "no-final-norm",
    "no-head-bias",
    "no-head-norm",
    "pos-no-offset",
    "pos-offset",
    "positions-from-one",
    "positions-from-zero",
    "token-type-missing",
)
LATER = {
    "all-nope-l1": 1,
    "attn-half": 1,
    "bias-q-l1": 1,
    "down-from-layer-0": 2,
    "fc-bias-l1": 1,
    "fc2-bias-l2": 2,
    "k-bias-in-v-l1": 1,
    "kv-tiled-l1": 1,
    "last-layer-skipped": 2,
    "layers-swapped": 1,
    "linear-forgotten": 2,
    "ln-before-residual-l1": 1,
    "ln-bias-l2": 2,
    "mlp-before": 2,
    "mlp-swapped-l2": 2,
    "no-post-norm": 2,
    "no-second-residual-l1": 1,
    "nope-rotated": 2,
    "norm-missing": 1,
    "post-ffn-norm-missing-l1": 1,
    "proj-transposed-l2": 2,
    "q-bias-l2": 2,
    "q-k-exchanged-l2": 2,
    "q-permuted-l1": 1,
    "residual-of-norm-l1": 1,
    "up-of-layer-0": 3,
    "wo-transposed": 1,
}


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
    return set(entry["names"]) == {expected(entry)[0]}


def expected(entry: dict[str, Any]) -> tuple[str, int | None]:
    """The name of the fault and the first layer that has it; None is outside of the layers."""
    fault: str = entry["fault"]
    known: tuple[str, int | None] | None = EXPECTED.get(entry["family"], {}).get(fault)
    if known is not None:
        return known
    name = NAMES[fault]
    if name in OUTSIDE or fault in OUTER_FAULTS:
        return name, None
    first = 1 if entry["family"] == "deepseek_v3" and "router" in name else 0
    return name, 1 if fault == "no-shared-expert" else LATER.get(fault, first)


def placed(entry: dict[str, Any]) -> bool:
    """Whether the first layer that has the fault was said."""
    if not entry["layers"]:
        return False
    return bool(entry["layers"][0] == expected(entry)[1])


def page(entries: list[dict[str, Any]]) -> str:
    """docs/foreign-ports.md."""
    single = [each for each in entries if each["fault"]]
    healthy = [each for each in entries if not each["fault"]]
    calm = sum(each["verdict"] in ("rounding", "identical") for each in healthy)
    wrong = sum(bool(each["names"]) and not right(each) for each in single)
    lines = [
        "# Foreign ports: what `compare` says of ports that it was not developed against",
        "",
        "Made by `python scripts/foreign_ports.py`. The ports in `tests/porting/foreign` were written in many",
        "styles of code without a look at how `compare` names faults. Before anything was mended for them,",
        "29 of 66 faults were named in float32, one of them with a second, wrong name. Bloom, gemma3, gpt-oss,",
        "granite, llama and smollm3 were added later in the same way: 30 of 60 in float32 before mending;",
        "then bert, falcon, gptj and opt: 13 of 34, one wrongly. Phi3 and roberta came after that: 11 of 13;",
        "codegen, exaone4, gpt_neo, persimmon and qwen2_moe: 64 of 69; mamba and t5: none of 30, t5 refused;",
        "then bart and lfm2: 12 of 16.",
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
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(MODULES)}")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    if unknown := sorted(set(options.families) - set(MODULES)):
        parser.error(f"no family {', '.join(unknown)}: expected some of {', '.join(MODULES)}")
    KEPT.parent.mkdir(exist_ok=True)
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    entries = [json.loads(line) for line in lines]
    done = {(each["family"], each["fault"], each["dtype"]) for each in entries}
    start = time.time()
    for family in options.families or MODULES:
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
