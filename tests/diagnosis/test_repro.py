"""Scripts stand alone and are run before they are offered; a report can be run again."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import tiny_llama
from probing import loaded

from attncheck.core import registry
from attncheck.core.errors import Unsupported
from attncheck.core.finding import Finding
from attncheck.core.settings import Settings
from attncheck.diagnosis.diagnose import Diagnoser
from attncheck.diagnosis.replay import run_again, spec_dict, spec_from_dict
from attncheck.diagnosis.repro import LINES, _slug, offered
from attncheck.model.forward_spec import ForwardSpec, Mask2D, blocks
from attncheck.model.subject import Subject
from attncheck.run.runner import finding_of

FACTORY = """
import functools, torch, transformers

def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2)
    made = transformers.LlamaForCausalLM(config)
    for name, p in made.named_parameters():
        if p.ndim > 1:
            torch.nn.init.normal_(p, std=1.0 if "embed" in name else p.shape[-1] ** -0.5)
    inner = made.forward

    @functools.wraps(inner)
    def forward(*args, **kwargs):
        {change}
        return inner(*args, **kwargs)

    made.forward = forward
    return made
"""
RESTARTING = 'kwargs["position_ids"] = torch.arange(kwargs["input_ids"].shape[1])[None]'


def failing(tmp_path: Path, change: str = RESTARTING) -> tuple[Subject, Finding]:
    path = tmp_path / "broken_model.py"
    path.write_text(FACTORY.replace("{change}", change))
    subject = loaded(f"{path}:model")
    return subject, Diagnoser()(subject, finding_of(subject, registry.load("decode-paths")))


def test_a_script_shows_the_fault_without_this_tool(tmp_path: Path) -> None:
    subject, found = failing(tmp_path)
    assert found.diagnosis is not None
    assert found.diagnosis.fault == "position-restart"
    text = offered(subject, found, tmp_path / "out").read_text()
    assert text.count("\n") <= LINES
    assert "attncheck" not in text
    script = tmp_path / "again.py"
    script.write_text(text)
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "expected" in ran.stdout
    assert "observed" in ran.stdout


def test_a_script_that_does_not_show_it_is_not_offered(tmp_path: Path) -> None:
    subject, found = failing(tmp_path)
    harmless = replace(found, replay={**found.replay, "got": found.replay["want"]})
    with pytest.raises(Unsupported, match="does not show the fault"):
        offered(subject, harmless, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_scripts_of_targets_and_settings_do_not_overwrite_one_another() -> None:
    subject = loaded("builtin:gqa")
    names = set()
    for name in ("./c/b", "./c_b", "c-b"):
        for attn in ("eager", "sdpa"):
            subject.loaded.name = name
            subject.loaded.settings = Settings(attn=attn)
            names.add(_slug(subject))
    assert len(names) == 6
    assert all(re.fullmatch(r"c-b-[0-9a-f]{8}", each) for each in names)


def test_no_script_for_a_fault_of_a_built_in(tmp_path: Path) -> None:
    subject = loaded("builtin:broken-positions")
    found = Diagnoser(repro=tmp_path)(subject, finding_of(subject, registry.load("decode-paths")))
    assert "built-in model" in found.replay["no_script"]


@pytest.mark.parametrize(
    "spec",
    [
        ForwardSpec(((3, 4, 5),), chunks=(2, 1), positions=((0, 1, 2),)),
        ForwardSpec(((3, 4, 5),), mask=Mask2D(((0, 1, 1),)), use_cache=None, attn="eager"),
        ForwardSpec(((3, 4, 5),), mask=blocks((1, 2)), cache_kind="static"),
    ],
)
def test_a_pass_survives_its_json(spec: ForwardSpec) -> None:
    assert spec_from_dict(spec_dict(spec)) == spec


def test_a_recorded_failure_fails_again_and_a_mended_model_does_not(tmp_path: Path) -> None:
    subject, found = failing(tmp_path)
    assert run_again(subject, found).fails
    mended, _ = failing(tmp_path, "pass")
    assert not run_again(mended, found).fails


def test_a_finding_that_its_probe_names_says_as_well_why_it_has_no_script(tmp_path: Path) -> None:
    model = tiny_llama()
    for layer in model.model.layers:
        layer.self_attn.scaling *= 4
    subject = Subject.of(model, "scaled")
    found = Diagnoser(repro=tmp_path)(subject, finding_of(subject, registry.load("reference")))
    assert found.diagnosis is not None
    assert found.diagnosis.fault == "softmax-scale"
    reason = "the failing case does not compare two calls of the model"
    assert found.replay["no_script"] == reason
