"""Reports made by hand for the tests of renderers: no model is loaded."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from attncheck.core.divergence import Divergence, PrecisionLevel, Profile
from attncheck.core.finding import Control, Diagnosis, Finding, KnownFinding, Location
from attncheck.core.measurement import AtMost, Comparison, Figure, skipped
from attncheck.core.verdict import Verdict
from attncheck.report.model import Report, TargetReport, exit_code

NASTY = 'a "quoted" <tag> & | pipe, `tick` \x07 bell, 100% \n second line \u2028 🙂'


def case(name: str, max_abs: float = 0.0, **rest: Any) -> Comparison:
    of_case = {key: rest.pop(key) for key in ("cuts", "ladder") if key in rest}
    usual = {"positions": 24, "scale": 3.0, "mean_abs": max_abs / 9, "kl": 0.01, "top1_flips": 1}
    divergence = Divergence(max_abs=max_abs, **{**usual, **rest})
    return Comparison(name, divergence, 1e-13, "float64 reorder floor 2.5e-14 x 4", **of_case)


def failing(probe: str = "decode-paths", **rest: object) -> Finding:
    finding = Finding(
        probe=probe,
        verdict=Verdict.FAIL,
        seconds=1.25,
        summary="chunks 12+12: logits differ by 1.8 from position 12, rounding explains 1e-13",
        cases=(
            case(
                "chunks 12+12, 2D mask",
                1.8,
                first_position=12,
                profile=Profile((0.0,) * 12 + (1.8, 0.4) * 6),
                cuts=(12,),
            ),
            case("one token at a time", 2e-15),
            skipped("padded", "the model takes no 2D mask"),
        ),
        diagnosis=Diagnosis(
            fault="position-restart",
            how="reproduced",
            residual=3e-13,
            runner_up={"fault": "mask-top-left", "residual": 0.8},
            advice="Add the length of the cache to the positions.",
            ruled_out=("cache-drops-token",),
        ),
        location=Location(
            module="model.layers.0.self_attn", layer=0, query_position=12, layers=(0.3, 1.2)
        ),
        replay={"tokens": [1, 2], "seed": 0},
    )
    return replace(finding, **rest)  # type: ignore[arg-type]


def nonfinite() -> Finding:
    broken = case(
        "left padded",
        math.inf,
        nonfinite=64,
        ladder=(PrecisionLevel(dtype="float16", max_abs=math.nan, budget=0.1),),
    )
    return Finding(
        probe="padding", verdict=Verdict.FAIL, summary="64 values are not finite", cases=(broken,)
    )


def passing(probe: str = "future-token") -> Finding:
    controls = (
        Control(fault="causal-mask-missing", detected=True, max_abs=2.4, case="all later tokens"),
    )
    return Finding(
        probe=probe,
        verdict=Verdict.PASS,
        summary="12 cases passed",
        cases=(case("all later tokens"),),
        controls=controls,
    )


def memory() -> Finding:
    return Finding(
        probe="kv-repeat",
        verdict=Verdict.WARN,
        summary="cache copied per decode step: 2 x the cache, expected at most 0",
        cases=(
            AtMost("copied, eager", 2.0, "x the cache", broken=Verdict.WARN, positions=24),
            Figure(
                "cache bytes",
                512.0,
                "B",
                positions=24,
                beside=(("MHA", 1024.0), ("MQA", 256.0)),
            ),
        ),
    )


def crashed() -> Finding:
    return Finding(
        probe="window",
        verdict=Verdict.ERROR,
        summary=f"the probe raised {NASTY}",
        error=f"Traceback\nValueError: {NASTY}",
    )


def skipping() -> Finding:
    return Finding(
        probe="gradient",
        verdict=Verdict.SKIP,
        summary="no gradients",
        skip_reason="the weights are quantised",
    )


def vacuous() -> Finding:
    control = Control(fault="padding-visible", detected=False, max_abs=0.0)
    return Finding(
        probe="batch-rows",
        verdict=Verdict.VACUOUS,
        summary="with padding-visible injected it passes",
        controls=(control,),
    )


def target(name: str, *results: Finding, **rest: object) -> TargetReport:
    given = {
        "target": name,
        "model": {
            "class": "LlamaForCausalLM",
            "parameters": 139840,
            "layers": 4,
            "heads": 4,
            "kv_heads": 2,
            "window": None,
        },
        "settings": {
            "attn": "sdpa",
            "dtype": "float64",
            "device": "cpu",
            "seed": 0,
            "length": 24,
            "asked": {"dtype": "auto"},
        },
        "seconds": 2.5,
        **rest,
    }
    return TargetReport(results=results, **given)  # type: ignore[arg-type]


def report(*targets: TargetReport, **rest: object) -> Report:
    given = {
        "attncheck": "0.1.0",
        "command": "attncheck run builtin:gqa",
        "started": "2026-11-29T14:00:00Z",
        "seconds": 12.5,
        "environment": {
            "python": "3.11.7",
            "torch": "2.13.0",
            "transformers": "5.24.0",
            "platform": "Linux",
            "device": "cpu",
        },
        **rest,
    }
    made = Report(targets=targets, **given)  # type: ignore[arg-type]
    return made if "exit_code" in rest else replace(made, exit_code=exit_code(made))


def everything() -> Report:
    """A report with every kind of verdict and every optional part."""
    known = failing(
        "position-reset",
        known=KnownFinding(by="suite", reason="soon", link="https://x.y/1", expires="2027-01-01"),
    )
    return report(
        target(
            "builtin:gqa",
            passing(),
            failing(),
            known,
            nonfinite(),
            memory(),
            crashed(),
            skipping(),
            vacuous(),
            notes=(NASTY,),
        ),
        target("org/name", failing(known=KnownFinding(by="baseline"))),
        TargetReport(
            target="no/where",
            settings={"attn": None, "dtype": "auto"},
            error=f"not in the cache {NASTY}",
        ),
        notes=("org/name: kv-repeat: in the baseline and gone",),
        fail_on=("vacuous",),
    )
