"""`attncheck serve-check`: a running engine by its HTTP API, against itself and its weights."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import typer

from attncheck.cli.options import DisplayOptions, argument, expanded, option
from attncheck.cli.planned import planned_presenter
from attncheck.cli.run import execute
from attncheck.cli.run_options import GateOptions, OutputOptions, SweepOptions
from attncheck.core.errors import TargetError, UsageError, unknown
from attncheck.core.settings import DTYPES, Settings
from attncheck.core.verdict import failing
from attncheck.suite.plan import Job, Plan
from attncheck.targets.target import parse

APIS = ("auto", "llama", "vllm", "openai")


_engine = partial(option, panel="Engine")


@expanded
def serve_check(
    *,
    url: str = argument("URL of the server, or RUNTIME:FOLDER, or file.py:factory.", "URL"),
    api: str = _engine("auto", "auto, llama, vllm or openai.", "NAME"),
    served_model: str | None = _engine(
        None, "Model that the server is asked for; by default its first.", "NAME", "--model"
    ),
    weights: str | None = _engine(
        None, "The same weights for transformers: a folder or another target.", "FOLDER"
    ),
    dtype: str = _engine(
        "auto", "What the engine computes in; auto looks at its numbers.", "DTYPE"
    ),
    rate: int | None = _engine(None, "Most requests a second.", "N", min=1),
    requests: int | None = _engine(None, "Most requests in all; 2000 by default.", "N", min=1),
    patience: int | None = _engine(
        None, "Seconds to wait for one answer; 60 by default.", "SECONDS", min=1
    ),
    seed: int = _engine(0, "Seed of the tokens that are drawn.", "N"),
    timeout: float | None = _engine(None, "Seconds in all.", "SECONDS"),
    reporting: OutputOptions,
    gate: GateOptions,
    display: DisplayOptions,
) -> None:
    """Check an engine that serves a model: an answer must not depend on how it was asked.

    Scoring, decoding, prefix cache, batch and chunks against fresh prompts; with --weights, all of
    it against transformers on the same weights. A key is read from ATTNCHECK_API_KEY only.
    """
    if api not in APIS:
        raise UsageError(unknown("api", api, APIS))
    if dtype not in DTYPES:
        raise UsageError(unknown("dtype", dtype, DTYPES))
    settings = Settings(
        api=api,
        served_model=served_model,
        weights=weights,
        dtype=dtype,
        rate=rate,
        requests=requests,
        patience=patience,
        seed=seed,
    )
    plan = engine_plan(url, settings)
    limits = SweepOptions(timeout=timeout)
    limits.check(False)
    presenter = planned_presenter(plan, reporting, gate, limits, display)
    fail_on = failing(gate.fail_on or (), gate.strict)
    raise typer.Exit(execute(plan, presenter, fail_on, gate, limits, reporting.scripts))


def engine_plan(target: str, settings: Settings) -> Plan:
    """The plan of one engine.

    Raises:
        TargetError: the target is no engine.
    """
    kind = parse(target).kind
    if kind not in ("server", "runtime", "factory"):
        raise TargetError(f"{target}: expected http://HOST:PORT, RUNTIME:FOLDER or file.py:factory")
    if kind == "factory":
        settings = replace(settings, engine="factory")
    return Plan(file=Path(), jobs=(Job(target=target, settings=settings, probes=()),))
