"""The command line as users meet it: exit codes, one-line errors, JSON, and what goes where."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attncheck.__main__ import main

FAST = ("--probe", "decode-paths")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["run", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_a_healthy_model_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "builtin:gqa", *FAST)
    assert (code, err) == (0, "")
    assert out.splitlines()[2].split()[:2] == ["PASS", "decode-paths"]
    assert out.splitlines()[-1].startswith("1 pass on 1 model in ")


def test_a_fault_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "builtin:broken-positions", *FAST)
    assert code == 1
    assert "FAIL position-restart: seen by decode-paths" in out.splitlines()


def test_the_default_target_is_said_aloud(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "--probe", "kv-repeat")
    assert code == 0
    assert (
        err == "attncheck: no target and no suite given: checking the built-in model builtin:gqa\n"
    )
    assert out.startswith("builtin:gqa  LlamaForCausalLM, ")


def test_nothing_but_skips_exits_with_5(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "builtin:alibi", "--probe", "position-reset")
    assert code == 5
    assert "SKIP    position-reset   BloomForCausalLM.forward takes no `position_ids`" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["builtin:gqa", "--probe", "decode-path"],
            "unknown probe `decode-path`: did you mean `decode-paths`?",
        ),
        (["builtin:gqa", "--dtype", "flaot32"], "unknown dtype `flaot32`: did you mean `float32`?"),
        (["builtin:gqa", "--fail-on", "wran"], "unknown verdict `wran`: did you mean `warn`?"),
        (
            ["builtin:gqa", "--report", "jsn=x"],
            "--report jsn=x: unknown report format `jsn`: did you mean `json`?",
        ),
        (
            ["builtin:gqa", "--report", "json"],
            "--report json: expected FORMAT=PATH, for instance json=report",
        ),
        (
            ["builtin:gqa", "--report", "json=/nowhere/x.json"],
            "--report json=/nowhere/x.json: no such folder `/nowhere`",
        ),
        (["builtin:gqa", "--prompt", "@/nowhere"], "--prompt @/nowhere: No such file or directory"),
        (["builtin:gqa", "--no-such-option"], "No such option"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_target_that_cannot_be_loaded_does_not_stop_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run(capsys, "builtin:nope", "builtin:gqa", *FAST)
    assert code == 2
    assert "ERROR builtin:nope: unknown built-in model `nope`: did you mean `moe`?" in out
    assert "PASS    decode-paths " in out
    assert "1 pass, 1 not loaded on 2 models" in out


def test_json_on_stdout_is_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "builtin:broken-positions", *FAST, "--format", "json")
    report: dict[str, Any] = json.loads(out)
    assert (code, report["exit_code"], report["schema"]) == (1, 1, "attncheck/1")
    (target,) = report["targets"]
    assert (target["verdict"], target["model"]["kv_heads"], target["settings"]["dtype"]) == (
        "fail",
        2,
        "float64",
    )
    (result,) = target["results"]
    assert (result["probe"], result["verdict"]) == ("decode-paths", "fail")
    case = result["cases"][0]
    assert {
        "name",
        "verdict",
        "max_abs",
        "mean_abs",
        "kl",
        "top1_flips",
        "positions",
        "first_position",
    } <= set(case)
    assert {"budget", "budget_from", "scale", "nonfinite"} <= set(case)
    assert case["first_position"] == 12
    assert report["summary"] == {
        "pass": 0,
        "fail": 1,
        "warn": 0,
        "noise": 0,
        "vacuous": 0,
        "skip": 0,
        "error": 0,
    }


def test_jsonl_is_one_line_a_probe(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(
        capsys,
        "builtin:gqa",
        "--probe",
        "kv-repeat",
        "--probe",
        "decode-paths",
        "--format",
        "jsonl",
    )
    assert [json.loads(line)["probe"] for line in out.splitlines()] == ["decode-paths", "kv-repeat"]


def test_quiet_is_the_summary_line(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "builtin:gqa", *FAST, "-q")
    assert len(out.splitlines()) == 1


def test_quiet_leaves_the_json_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "builtin:gqa", *FAST, "-q", "--format", "json")
    assert json.loads(out)["schema"] == "attncheck/1"


def test_strict_and_fail_on_move_the_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        PROBE.replace("limit=2.0", "limit=2.0, broken=Verdict.WARN").replace(
            "3.0", "3.0 * (subject.name == 'builtin:moe')"
        )
    )
    warns = ("builtin:moe", "--probe", f"{tmp_path}/mine.py:Mine", "-q")
    assert run(capsys, *warns)[0] == 0
    assert run(capsys, *warns, "--strict")[0] == 1
    assert run(capsys, *warns, "--fail-on", "warn")[0] == 1
    assert run(capsys, *warns, "--fail-on", "noise")[0] == 0
    passes = ("builtin:gqa", *warns[1:], "--dtype", "float32")
    assert run(capsys, *passes)[0] == 0


def test_traps_of_the_library_count_only_where_they_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    leaks = ("builtin:gqa", "--probe", "document-leakage", "-q")
    code, out, _ = run(capsys, *leaks, "--strict")
    assert code == 0
    assert "2 traps of transformers" in out
    assert run(capsys, *leaks, "--fail-on", "trap")[0] == 1


def test_every_option_has_an_environment_twin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNCHECK_PROBE", "kv-repeat")
    monkeypatch.setenv("ATTNCHECK_FORMAT", "jsonl")
    _, out, _ = run(capsys, "builtin:gqa")
    assert [json.loads(line)["probe"] for line in out.splitlines()] == ["kv-repeat"]


def test_several_implementations_are_several_runs(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(
        capsys, "builtin:gqa", *FAST, "--attn", "eager", "--attn", "sdpa", "--format", "json"
    )
    assert [target["settings"]["attn"] for target in json.loads(out)["targets"]] == [
        "eager",
        "sdpa",
    ]


def test_a_report_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(capsys, "builtin:gqa", *FAST, "-q", "--report", f"json={tmp_path}/report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["targets"][0]["results"][0]["verdict"] == "pass"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_model_of_nan_fails_and_is_counted(
    capsys: pytest.CaptureFixture[str], saved: Callable[..., Path]
) -> None:
    from safetensors.torch import load_file, save_file

    folder = saved()
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"].fill_(float("nan"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    code, out, _ = run(capsys, str(folder), *FAST)
    assert code == 1
    assert "values are not finite" in out


def test_an_encoder_is_skipped_with_a_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import transformers

    config = transformers.BertConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    code, out, _ = run(
        capsys, str(tmp_path / "bert"), "--probe", "future-token", "--probe", "decode-paths"
    )
    assert code == 5
    assert "SKIP    future-token     BertForMaskedLM is a masked language model: it r" in out


@pytest.mark.parametrize(
    "changes",
    [{"vocab_size": 3, "bos_token_id": None, "eos_token_id": None}, {"max_position_embeddings": 8}],
)
def test_small_vocabularies_and_contexts_are_checked(
    capsys: pytest.CaptureFixture[str], saved: Callable[..., Path], changes: dict[str, Any]
) -> None:
    code, out, _ = run(
        capsys, str(saved(**changes)), "--probe", "future-token", "--probe", "decode-paths"
    )
    assert code == 0
    assert "2 pass on 1 model" in out


def test_a_probe_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PROBE)
    code, out, _ = run(capsys, "builtin:gqa", "--probe", f"{tmp_path}/mine.py:Mine")
    assert code == 1
    assert "  bytes: 3 B, expected at most 2" in out.splitlines()


PROBE = """
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
from attncheck.core.ruling import judge_cases
from attncheck.probing import AtMost, Verdict

@dataclass(frozen=True)
class Mine:
    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "mine"
    cost: ClassVar[str] = "cheap"
    needs: ClassVar[tuple[str, ...]] = ()
    controls: ClassVar[tuple[str, ...]] = ()

    def measure(self, subject):
        yield AtMost("bytes", 3.0, "B", limit=2.0)

    def judge(self, evidence):
        return judge_cases(evidence)
"""


def test_a_probe_that_raises_is_an_error_and_the_next_one_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        PROBE.replace("yield AtMost", "raise KeyError('lost')\n        yield AtMost")
    )
    code, out, _ = run(
        capsys, "builtin:gqa", "--probe", f"{tmp_path}/mine.py:Mine", "--probe", "kv-repeat"
    )
    assert code == 3
    assert "ERROR   mine             the probe raised KeyError: no such key: 'lost'" in out
    assert "PASS    kv-repeat " in out
    assert "Traceback" not in out


def test_what_is_interrupted_is_reported(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        PROBE.replace("yield AtMost", "raise KeyboardInterrupt\n        yield AtMost")
    )
    command = [
        sys.executable,
        "-m",
        "attncheck",
        "run",
        "builtin:gqa",
        "--probe",
        "kv-repeat",
        "--probe",
        f"{tmp_path}/mine.py:Mine",
    ]
    done = subprocess.run(
        [*command, "--report", f"json={tmp_path}/r.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 130
    report = json.loads((tmp_path / "r.json").read_text())
    assert [result["probe"] for result in report["targets"][0]["results"]] == ["kv-repeat"]
    assert report["exit_code"] == 130
    assert "Traceback" not in done.stderr


def test_commands_that_do_not_exist_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rnu"]) == 2
    assert capsys.readouterr().err == "attncheck: unknown command `rnu`: did you mean `run`?\n"


def test_explain_offers_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "decode-pths"]) == 2
    assert "did you mean `decode-paths`?" in capsys.readouterr().err


def test_doctor_says_what_works_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = dict(
        line.split(maxsplit=1)
        for line in capsys.readouterr().out.splitlines()
        if not line.startswith("attention")
    )
    assert {"attncheck", "torch", "transformers", "memory", "probes"} <= set(lines)


def test_a_target_in_the_place_of_a_command_hints_at_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["builtin:gqa"]) == 2
    said = "attncheck: no command `builtin:gqa`: did you mean `attncheck run builtin:gqa`?\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_no_arguments_are_a_call_for_help(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(arguments) == 0
    assert "Find bugs:\n  run " in capsys.readouterr().out


@pytest.fixture
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of a sweep are forked from this one, which has loaded torch."""
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr("attncheck.run.pool._context", lambda: context)


SWEEP = ("builtin:gqa", "builtin:broken-mask", "--probe", "future-token", "--jobs", "2", "-q")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("_forked")
def test_a_sweep_honours_the_baseline_and_writes_scripts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    known, kept = tmp_path / "known.json", ("--sweep-dir", f"{tmp_path}/kept")
    scripts = ("--repro", f"{tmp_path}/scripts")
    assert run(capsys, *SWEEP, *kept, "--write-baseline", str(known), *scripts)[0] == 1
    assert json.loads(known.read_text())["findings"][0]["probe"] == "future-token"
    report = tmp_path / "report.json"
    again = run(capsys, *SWEEP, *kept, "--baseline", str(known), "--report", f"json={report}")
    assert again[0] == 0
    assert "1 pass, 1 fail (1 known) on 2 models" in again[1]
    targets = json.loads(report.read_text())["targets"]
    assert [each["target"] for each in targets] == list(SWEEP[:2])
    # What is known is settled anew in each run, and not kept in the folder.
    assert run(capsys, *SWEEP, *kept)[0] == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("_forked")
def test_a_sweep_prints_json_lines_and_stops_at_the_first_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    targets = ("builtin:broken-mask", "builtin:gqa", "builtin:mha")
    options = ("--probe", "future-token", "--sweep-dir")
    with tempfile.TemporaryDirectory() as folder:
        first = run(capsys, *targets, *options, folder, "--fail-fast", "--format", "jsonl")
        rest = run(capsys, *targets, *options, folder, "--format", "jsonl")
    assert first[0] == rest[0] == 1
    lines = [json.loads(line) for line in first[1].splitlines()]
    assert [(line["target"], line["verdict"]) for line in lines] == [(targets[0], "fail")]
    assert len(rest[1].splitlines()) == 3
