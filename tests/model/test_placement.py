"""A model whose layers live in memory and on disk is checked like any other, and computes what it
computes in one place.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from attncheck.core import registry
from attncheck.core.errors import TargetError
from attncheck.core.finding import Finding
from attncheck.core.measurement import verdict_of
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.diagnose import Diagnoser
from attncheck.model.compat import CACHE_NAMES, cached_length
from attncheck.model.forward import wrap_forward
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.placement import offloaded
from attncheck.model.subject import Subject
from attncheck.run.runner import ProbeFinished, run_probes
from attncheck.targets.load import load
from attncheck.targets.random_init import build

MAP = {
    "model.embed_tokens": "cpu",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "cpu",
}


def saved(folder: Path, kind: str) -> tuple[str, str]:
    """A two-layer model of a type in bfloat16, and a map that keeps its second layer on disk."""
    model = build(kind, Settings(layers=2)).to(torch.bfloat16)
    model.save_pretrained(folder / kind)
    where = {
        **MAP,
        **{
            f"model.layers.{i}": "disk" if i % 2 else "cpu"
            for i in range(model.config.num_hidden_layers)
        },
    }
    (folder / "map.json").write_text(json.dumps(where))
    return str(folder / kind), str(folder / "map.json")


def split(folder: Path, kind: str = "llama", **settings: object) -> Subject:
    target, device_map = saved(folder, kind)
    return load(target, Settings(device_map=device_map, length=12, **settings))  # type: ignore[arg-type]


def findings(subject: Subject, *names: str) -> list[Finding]:
    events = run_probes(
        subject, [registry.load(name) for name in registry.select(names)], Diagnoser()
    )
    return [event.finding for event in events if isinstance(event, ProbeFinished)]


def test_offloaded_layers_compute_what_the_whole_model_computes(tmp_path: Path) -> None:
    apart = split(tmp_path)
    whole = load(str(tmp_path / "llama"), Settings(length=12))
    assert offloaded(apart.model) > 0
    assert (apart.dtype_name, whole.dtype_name) == ("float64", "float64")
    assert apart.device == torch.device("cpu")
    spec = ForwardSpec(whole.inputs.tokens, chunks=(5, 1, 6))
    assert torch.equal(apart.logits(spec), whole.logits(spec))
    assert apart.loaded.stored_dtype == torch.bfloat16
    assert any("are offloaded" in remark for remark in apart.loaded.remarks)
    assert any("widened operator by operator" in remark for remark in apart.loaded.remarks)


NEEDS_WEIGHTS = "derivative along projections"
NEEDS_CAST = "eager in plain float64"
NEEDS_BOTH = "the same forward after another dtype"
"""What cannot be asked of weights that are not there, or that no cast brings to another dtype:
skipped with a sentence.
"""


def test_every_probe_comes_to_what_it_comes_to_in_one_place(tmp_path: Path) -> None:
    apart, whole = (
        findings(split(tmp_path)),
        findings(load(str(tmp_path / "llama"), Settings(length=12))),
    )
    assert (
        [finding.probe for finding in apart]
        == registry.select(())
        == [finding.probe for finding in whole]
    )
    assert len(apart) == 16
    otherwise = {}
    for got, want in zip(apart, whole, strict=True):
        cases = {case.name: verdict_of(case) for case in got.cases}
        usual = {case.name: verdict_of(case) for case in want.cases}
        assert list(cases) == list(usual), got.probe
        otherwise.update(
            {
                (got.probe, name): verdict
                for name, verdict in cases.items()
                if verdict is not usual[name]
            }
        )
        assert [control.detected for control in got.controls] == [True] * len(got.controls), (
            got.probe
        )
        if got.probe != "gradient":
            assert [control.fault for control in got.controls] == [
                control.fault for control in want.controls
            ], got.probe
    skipped = [("gradient", NEEDS_WEIGHTS), ("padding", NEEDS_CAST), ("repeatability", NEEDS_BOTH)]
    assert otherwise == dict.fromkeys(skipped, Verdict.SKIP)
    notes = {case.name: case.note for finding in apart for case in finding.cases}
    assert "offloaded" in notes[NEEDS_WEIGHTS]
    assert notes[NEEDS_BOTH] == "the weights cannot be cast to bfloat16 and back"
    wrong = (Verdict.ERROR, Verdict.FAIL, Verdict.VACUOUS)
    assert not [(finding.probe, finding.summary) for finding in apart if finding.verdict in wrong]


def test_sinks_of_offloaded_layers_are_read_while_they_run(tmp_path: Path) -> None:
    (reference,) = findings(split(tmp_path, "gpt_oss"), "reference")
    assert reference.verdict is Verdict.PASS
    assert {control.fault for control in reference.controls if control.detected}


def test_a_fault_in_offloaded_layers_is_named_and_located(tmp_path: Path) -> None:
    subject = split(tmp_path)

    def restart(call: dict[str, object]) -> dict[str, object]:
        if not max(cached_length(call.get(name)) for name in CACHE_NAMES):
            return call
        return {**call, "position_ids": torch.arange(call["input_ids"].shape[1])[None]}  # type: ignore[attr-defined]

    wrap_forward(subject.model, restart)
    (found,) = findings(subject, "decode-paths")
    assert found.verdict is Verdict.FAIL
    assert found.diagnosis is not None
    assert found.diagnosis.fault == "position-restart"
    assert found.location is not None
    assert found.location.module == "model.layers.0.self_attn"


def test_offloaded_weights_keep_the_dtype_that_is_asked_for(tmp_path: Path) -> None:
    subject = split(tmp_path, dtype="bfloat16")
    assert subject.dtype_name == "bfloat16"
    assert subject.higher_dtype() == "float64"
    with subject.at("float64") as wide:
        assert wide.logits(ForwardSpec(subject.inputs.tokens)).dtype == torch.float64
    assert subject.logits(ForwardSpec(subject.inputs.tokens)).dtype == torch.bfloat16


def test_the_folder_of_offloaded_weights_goes_with_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "offload"
    folder.mkdir()
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(folder))
    subject = split(tmp_path)
    assert folder.is_dir()
    del subject
    import gc

    gc.collect()
    assert not folder.exists()


def test_a_device_map_that_cannot_be_read_is_said_in_one_line(tmp_path: Path) -> None:
    target, _ = saved(tmp_path, "llama")
    with pytest.raises(TargetError) as refused:
        load(target, Settings(device_map="nowhere.json"))
    said = f"{target}: --device-map nowhere.json: No such file or directory"
    assert str(refused.value) == said
