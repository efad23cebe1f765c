"""What decides an answer, what it says, and how it is written down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attncheck.__main__ import main
from attncheck.core.errors import UsageError
from attncheck.core.finding import Verdict
from attncheck.core.settings import Settings
from attncheck.model.compat import CACHE_NAMES, cached_length
from attncheck.model.forward import edited
from attncheck.targets.load import load
from attncheck.triage.answer import GreedySplit, Question, TriageAnswer
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.page import markdown, split_words
from attncheck.triage.routes import present, route
from attncheck.triage.run import Investigation


def investigation(target: str, reported: str = "float32", **question: object) -> Investigation:
    return Investigation(load(target, Settings()), Question(**question), reported)  # type: ignore[arg-type]


def test_without_a_symptom_a_healthy_model_in_float32_is_not_accused() -> None:
    triage = investigation("builtin:gqa", symptom="packing", passes=40).run()
    assert triage.answer in (TriageAnswer.BEHAVIOUR, TriageAnswer.NOT_REPRODUCED)
    assert triage.finding is None


def test_a_difference_in_bfloat16_is_rounding_with_its_table() -> None:
    triage = investigation("builtin:gqa", "bfloat16", symptom="implementation").run()
    assert triage.answer is TriageAnswer.NUMERICS
    assert [line.dtype for line in triage.lines] == ["bfloat16", "float32", "float64"]
    sizes = [line.max_abs for line in triage.lines]
    assert sizes[0] > 1e2 * sizes[1] > 1e6 * sizes[2]
    assert all(line.max_abs <= line.budget for line in triage.lines)
    verdicts = {step.name: step.verdict for step in triage.steps}
    assert {verdicts[name] for name in ("one axis at a time", "axes crossed", "control")} == {
        Verdict.PASS
    }


def test_the_reporters_own_call_runs_before_the_probes() -> None:
    triage = investigation(
        "builtin:broken-positions",
        symptom="cache",
        pattern=CallPattern(cache="static", schedule="steps"),
    ).run()
    assert triage.answer is TriageAnswer.CONFIRMED
    assert triage.diagnosis is not None
    assert triage.diagnosis.fault == "position-restart"
    names = [step.name for step in triage.steps]
    assert names == ["finite values", "reference", "the reporter's own call"]
    assert triage.smallest is not None
    assert (triage.smallest.words, triage.smallest.tokens) == (
        "decoded token by token on a cache",
        3,
    )


def test_markdown_holds_the_answer_its_table_and_what_was_tried() -> None:
    triage = investigation("builtin:gqa", "bfloat16", symptom="batch").run()
    text = markdown(triage)
    assert text.startswith("### EXPECTED NUMERICS: builtin:gqa\n")
    assert "| bfloat16 |" in text
    assert "| control | pass |" in text
    assert markdown(replace(triage, script="print(1)")).count("```python\nprint(1)\n```") == 1


@pytest.mark.parametrize(("margin", "said"), [(0.01, "nearer than"), (0.5, "farther apart than")])
def test_a_turn_of_greedy_text_is_held_against_what_the_logits_differ_by(
    margin: float, said: str
) -> None:
    split = GreedySplit(
        position=9, chosen="'a'", other="'b'", margin=margin, difference=0.1, flips=3, tokens=24
    )
    assert said in split_words(split)


def test_symptoms_have_routes_and_typing_errors_the_nearest() -> None:
    assert route("cache").axes == ("schedule", "cache")
    assert present(["labels", "no-such-probe"], ["labels", "padding"]) == ["labels"]
    with pytest.raises(UsageError, match="unknown symptom `cach`: did you mean `cache`"):
        route("cach")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--symptom", "batsch"], "unknown symptom `batsch`: did you mean `batch`?"),
        (["--padding-side", "lefty"], "unknown padding side `lefty`: did you mean `left`?"),
        (["--cache", "statik"], "unknown cache `statik`: did you mean `static`?"),
        (["--report", "pdf=x"], "unknown report format `pdf`: expected one of `markdown`"),
        (["--report", "markdown=/no/such/folder/x.md"], "no such folder"),
        (["--against", "builtin:gpa"], "unknown built-in model `gpa`: did you mean `gqa`?"),
    ],
)
def test_usage_errors_are_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["triage", "builtin:gqa", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_report_is_written_and_the_exit_code_says_confirmed(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    assert (
        main(["triage", "builtin:broken-mask", "--report", f"markdown={path}", "--no-progress"])
        == 1
    )
    assert "mask-off-by-one" in path.read_text()


def test_the_script_is_made_of_the_smallest_passes_and_shows_the_fault(tmp_path: Path) -> None:
    factory = tmp_path / "made.py"
    made = "from attncheck.targets.builtin import build\n\n\ndef model():\n    return build('broken-positions', None)\n"
    factory.write_text(made)
    found = investigation(f"{factory}:model", symptom="cache")
    found.repro = tmp_path
    triage = found.run()
    assert triage.no_script == ""
    assert "chunks=(1, 1, 1)" in triage.script
    assert len(list(tmp_path.glob("*.py"))) == 2


def test_a_fault_that_only_long_rows_show_is_found() -> None:
    """Positions that stop counting after 180 tokens: no row of the probes is as long."""
    found = investigation("config:llama", symptom="long")
    frozen = edited(found.subject.model, lambda call: {**call, "position_ids": _frozen(call)})
    with frozen:
        triage = found.run()
    assert triage.answer is TriageAnswer.CONFIRMED
    assert triage.steps[-1].name == "lengths"
    assert "tokens in two pieces" in triage.headline


def _frozen(call: dict[str, Any]) -> torch.Tensor:
    """Right positions up to 180, and those of the call's own tokens from there on."""
    before = max(cached_length(call.get(name)) for name in CACHE_NAMES)
    length = call["input_ids"].shape[1]
    given = call.get("position_ids")
    if given is not None and before + length <= 180:
        return given
    start = 0 if before + length > 180 else before
    return torch.arange(start, start + length)[None]


def test_prompts_without_a_tokenizer_are_said_not_to_be_used(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(["triage", "builtin:gqa", "--symptom", "cache", "--prompt", "hello", "--no-progress"])
        == 0
    )
    assert "the prompts were not used" in " ".join(capsys.readouterr().out.split())


def test_a_fault_of_boolean_masks_does_not_answer_a_report_of_rounding() -> None:
    subject = load("builtin:gqa", Settings(attn="eager"))
    triage = Investigation(subject, Question(symptom="implementation"), "float16").run()
    assert triage.answer is TriageAnswer.NUMERICS
    assert any("boolean 4D mask, eager" in remark.words for remark in triage.remarks)
