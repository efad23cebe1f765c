"""The file of a recording: it reads back, is small, and anything else is refused in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import tiny_llama
from safetensors.torch import save_file

from attncheck.core.errors import TargetError
from attncheck.golden.file import LIMIT, Golden, load, save, to_data
from attncheck.golden.gate import hold
from attncheck.golden.recording import record
from attncheck.golden.sketch import GROUPS, Sketches
from attncheck.model.subject import Subject


@pytest.fixture(scope="module")
def golden() -> Golden:
    return record(Subject.of(tiny_llama(), "tiny", dtype="float32"), {"torch": "2"})


def test_a_recording_reads_back(golden: Golden, tmp_path: Path) -> None:
    size = save(golden, tmp_path / "g.safetensors")
    assert size == (tmp_path / "g.safetensors").stat().st_size < 400_000
    back = load(tmp_path / "g.safetensors")
    assert (back.name, back.vocab, back.meta) == ("tiny", 64, golden.meta)
    assert [each.call for each in back.entries] == [each.call for each in golden.entries]
    assert list(back.weights) == list(golden.weights)
    answer = hold(back, Subject.of(tiny_llama(), "tiny", dtype="float32"))
    assert answer.word == "IDENTICAL"


def test_a_large_recording_leaves_out_what_is_deepest(golden: Golden) -> None:
    entry = golden.entries[0]
    names = [("lm_head", "out")] + [(f"m.{n}.a.b", "out") for n in range(80_000)]
    moved = torch.zeros(len(names), GROUPS, dtype=torch.float64)
    sketches = Sketches(tuple(names), moved[..., None].expand(-1, -1, 4), moved)
    wide = replace(
        entry,
        measured=replace(entry.measured, sketches=sketches),
        rounding=replace(entry.rounding, events=tuple(names), norms_EG=moved),
    )
    assert len(to_data(replace(golden, entries=(wide,)))) < LIMIT // 10


def _saved(path: Path, header: dict[str, object]) -> Path:
    save_file({"a": torch.zeros(1)}, str(path), {"attncheck": json.dumps(header)})
    return path


def test_what_is_no_recording_is_refused_in_one_line(golden: Golden, tmp_path: Path) -> None:
    whole = tmp_path / "g.safetensors"
    save(golden, whole)
    data = whole.read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(data[: len(data) // 2])
    flipped = bytearray(data)
    flipped[-100] ^= 1
    (tmp_path / "flipped.safetensors").write_bytes(bytes(flipped))
    (tmp_path / "text.safetensors").write_bytes(b"nothing")
    save_file({"weight": torch.zeros(2)}, str(tmp_path / "weights.safetensors"))
    _saved(tmp_path / "old.safetensors", {"schema": "attncheck-trace/1"})
    _saved(tmp_path / "new.safetensors", {"schema": "attncheck-golden/9"})
    for name, words in {
        "none": "no such file",
        "cut": "damaged, or no recording",
        "flipped": "damaged: its content does not have the checksum in it",
        "text": "damaged, or no recording",
        "weights": "no recording of attncheck: `attncheck record` writes one",
        "old": r"written by an older attncheck \(attncheck-trace/1\): record the model again",
        "new": r"written by a newer attncheck \(attncheck-golden/9, here attncheck-golden/1\)",
    }.items():
        with pytest.raises(TargetError, match=words) as raised:
            load(tmp_path / f"{name}.safetensors")
        assert "\n" not in str(raised.value)
