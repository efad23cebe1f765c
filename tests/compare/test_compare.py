"""compare and record: the same to the bit, rounding, something else; by whose weights or in which
module.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import tiny_llama

from attncheck.__main__ import main
from attncheck.compare import weights
from attncheck.compare.divergence import compare
from attncheck.compare.record import CHUNKED, PADDED, PLAIN, record, save
from attncheck.compare.record import load as load_recording
from attncheck.compare.sides import changed, compare_sides
from attncheck.core.errors import TargetError, UsageError
from attncheck.core.settings import Settings
from attncheck.faults import registry as faults
from attncheck.model.subject import Subject
from attncheck.targets.load import load

ROOT = Path(__file__).parents[2]


def quiet(what: str) -> None:
    return None


def test_a_model_is_identical_to_itself_in_every_call_pattern(subject: Subject) -> None:
    found = compare(record(subject), record(load("builtin:gqa", Settings())))
    assert [way.way for way in found.forwards] == [PLAIN, CHUNKED, PADDED]
    assert found.verdict == "identical"
    assert not found.weights


def test_two_implementations_differ_by_rounding(subject: Subject) -> None:
    found = compare(record(subject), record(load("builtin:gqa", Settings(attn="eager"))))
    assert found.verdict == "rounding"
    (plain, *_) = found.forwards
    assert 0 < plain.max_abs <= plain.budget < 1e-12
    assert dict(plain.top)[1] == 1.0


@pytest.mark.parametrize(
    ("fault", "way", "module"),
    [
        ("position-restart", CHUNKED, "model.rotary_emb"),
        ("softmax-scale", PLAIN, "model.layers.0.self_attn"),
        ("leak-outside-attention", PLAIN, "model.layers.0"),
    ],
)
def test_the_way_and_the_first_module_of_a_planted_fault(
    subject: Subject, fault: str, way: str, module: str
) -> None:
    good = record(subject)
    with faults.fault(fault).inject(subject), subject.passes.under(fault, False):
        bad = record(subject, good.rows, good.pad)
    found = compare(good, bad)
    assert found.verdict == "different"
    assert found.worst is not None
    assert found.worst.first is not None
    assert (found.worst.way, found.worst.first.home) == (way, module)


def test_divergence_by_position_starts_at_the_cut(subject: Subject) -> None:
    good = record(subject)
    with (
        faults.fault("position-restart").inject(subject),
        subject.passes.under("position-restart", False),
    ):
        bad = record(subject, good.rows, good.pad)
    (chunked,) = [way for way in compare(good, bad).forwards if way.way == CHUNKED]
    assert chunked.first_position == 8
    assert max(chunked.by_position[:8]) <= chunked.budget < min(chunked.by_position[9:])
    assert [share for share, _ in chunked.kl] == [0.5, 0.9, 0.99, 1.0]
    assert chunked.kl[-1][1] == max(value for _, value in chunked.kl) > 0.01


def test_a_trace_holds_everything_and_reads_back(subject: Subject, tmp_path: Path) -> None:
    recording = record(subject)
    save(recording, tmp_path / "t.safetensors")
    back = load_recording(tmp_path / "t.safetensors")
    assert (back.rows, back.dtype, back.pad, back.meta) == (
        recording.rows,
        "float64",
        recording.pad,
        recording.meta,
    )
    assert compare(recording, back).verdict == "identical"
    assert list(back.forwards[0].outputs) == list(recording.forwards[0].outputs)


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(TargetError, match="not a recording"):
        load_recording(path)
    with pytest.raises(TargetError, match="no such file"):
        load_recording(tmp_path / "y.safetensors")


def test_record_and_compare_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "t.safetensors")
    assert main(["record", "builtin:gqa", "-o", path, "--no-progress"]) == 0
    assert main(["compare", path, "builtin:gqa", "--no-progress"]) == 0
    assert main(["compare", path, "builtin:broken-positions", "--no-progress"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "IDENTICAL every logit is the same to the last bit" in said
    assert "All 39 weights are the same" in said
    assert "First diverging module: model.rotary_emb from position 8 on" in said


def test_a_coarse_precision_is_decided_by_a_finer_one() -> None:
    base = Settings(dtype="bfloat16")
    same = compare_sides("builtin:gqa", "builtin:gqa", base, replace(base, attn="eager"), quiet)
    assert (same.comparison.verdict, same.verdict) == ("undecided", "rounding")
    other = compare_sides("builtin:gqa", "builtin:broken-positions", base, base, quiet)
    assert other.verdict == "different"


def test_an_upgrade_is_recorded_under_one_release_and_compared_under_another(
    tmp_path: Path,
) -> None:
    """The scale flags of GPT-2 were ignored by sdpa attention up to 5.3.0: layer 1 is the first
    whose number is not 1.
    """
    old = next(
        (
            python
            for python in sorted(ROOT.glob(".venvs/*/bin/python"))
            if _release(python) in FORGETFUL
        ),
        None,
    )
    if old is None:
        pytest.skip(f"no environment in .venvs with transformers {' or '.join(FORGETFUL)}")
    target, path = f"{ROOT}/tests/triage/reported_models.py:scaled_by_layer", str(tmp_path / "t.safetensors")
    assert main(["record", target, "-o", path, "--no-progress"]) == 0
    ran = subprocess.run(
        [str(old), "-m", "attncheck", "compare", path, target, "--no-progress"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/probes"},
    )
    assert ran.returncode == 1, ran.stderr
    said = " ".join(ran.stdout.split())
    assert "All 52 weights are the same" in said
    assert "First diverging module: transformer.h.1.attn" in said


FORGETFUL = ("4.57.6", "5.3.0")


def _release(python: Path) -> str:
    found = next(
        python.parent.parent.glob("lib/python*/site-packages/transformers-*.dist-info"), None
    )
    return found.name.removeprefix("transformers-").removesuffix(".dist-info") if found else ""


def test_changed_weights_are_named_before_any_code(saved: Callable[..., Path]) -> None:
    folder = saved("plain")
    other = tiny_llama()
    with torch.no_grad():
        other.model.layers[1].mlp.up_proj.weight.add_(0.01)
    other.save_pretrained(folder.parent / "changed")
    found = compare_sides(
        str(folder), str(folder.parent / "changed"), Settings(), Settings(), quiet
    )
    assert found.comparison.weights == ("model.layers.1.mlp.up_proj.weight",)
    assert [each.kind for each in found.how] == ["rank"]
    assert found.verdict == "different"


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (lambda rows: weights.interleaved(rows, 4), "halves of 4 heads interleaved"),
        (
            lambda rows: weights.taken_apart(weights.interleaved(rows, 2), 8),
            "interleaved for 2 heads and taken apart for 8",
        ),
        (lambda rows: torch.cat([rows[5:], rows[:5]]), "the same rows in another order"),
    ],
)
def test_rows_in_another_order_are_told_from_other_rows(
    order: Callable[[Any], Any], said: str
) -> None:
    matrix = torch.randn(96, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (found,) = [weights.difference("w", matrix, matrix[order(torch.arange(96))])]
    assert (found.kind, said in found.words) == ("order", True)
    assert (
        weights.difference(
            "w", matrix, matrix + torch.randn(96, 8, dtype=torch.float64) * 0.05
        ).kind
        == "noise"
    )


def test_settings_of_a_side_are_checked() -> None:
    assert changed(Settings(), ["attn=eager,length=12", "dtype=float32"]) == Settings(
        attn="eager", length=12, dtype="float32"
    )
    for text, said in [
        ("attn", "expected NAME=VALUE"),
        ("atn=eager", "did you mean `attn`"),
        ("length=x", "expected a whole number"),
        ("dtype=float12", "did you mean `float32`"),
    ]:
        with pytest.raises(UsageError, match=said):
            changed(Settings(), [text])


def test_a_vocabulary_that_lacks_the_tokens_is_said(saved: Callable[..., Path]) -> None:
    small = saved("small", vocab_size=32)
    with pytest.raises(TargetError, match="outside its vocabulary of 32"):
        compare_sides("builtin:gqa", str(small), Settings(), Settings(), quiet)
