from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_servers import BASE, FakeVllm, llama_server, serving, tiny, write_gguf
from typer.testing import CliRunner

from attncheck.cli.app import app
from attncheck.core.errors import TargetError
from attncheck.core.finding import Finding
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.engines.engine import EngineGone
from attncheck.engines.examination import examined_in_engine
from attncheck.engines.servers import client as client_module


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FIRST_WAIT", 0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny().save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def examined(url: str, **settings: Any) -> dict[str, Finding]:
    with examined_in_engine(url, Settings(**settings)) as examination:
        return {each.probe: each for each in examination.findings()}


def verdicts(found: dict[str, Finding]) -> dict[str, str]:
    return {name.removeprefix("engine-"): str(each.verdict) for name, each in found.items()}


def test_vllm_healthy_passes_with_all_controls_seen(folder: Path) -> None:
    with serving(FakeVllm(tiny())) as server:
        found = examined(server.url, weights=str(folder))
        assert {body.get("cache_salt") for path, body, _ in server.seen if body} != {None}
    assert verdicts(found) == {
        "weights": "pass",
        "repeat": "pass",
        "scoring": "pass",
        "decode": "pass",
        "chunks": "skip",
        "cache": "pass",
        "batch": "pass",
    }
    controls = [control for each in found.values() for control in each.controls]
    assert len(controls) == 5
    assert all(control.detected for control in controls)
    assert found["engine-cache"].cases[0].note == "80 of 96 tokens from the cache"


def test_vllm_with_a_fault_of_its_cache_is_named_without_weights() -> None:
    fake = FakeVllm(tiny())
    fake.wrong = lambda ids, cached, scores: (*ids[: cached - 1], *ids[cached:]) if cached else ids
    with serving(fake) as server:
        found = examined(server.url)
    broken = {name for name, each in found.items() if each.verdict is Verdict.FAIL}
    assert broken == {"engine-cache", "engine-batch"}  # neighbours share a prefix
    diagnosis = found["engine-cache"].diagnosis
    assert diagnosis is not None
    assert (diagnosis.fault, diagnosis.how) == ("cache-drops-token", "reproduced")
    assert diagnosis.advice.startswith("The last cached token is missing. ")


def test_a_server_that_adds_a_token_is_named(folder: Path) -> None:
    fake = FakeVllm(tiny())
    fake.wrong = lambda ids, cached, scores: ids if scores else (1, *ids)
    fake.version = ""  # a plain server, which scores no prompt
    with serving(fake) as server:
        found = examined(server.url, weights=str(folder))
    diagnosis = found["engine-weights"].diagnosis
    assert diagnosis is not None
    assert (diagnosis.fault, diagnosis.how) == ("token-added", "reproduced")
    assert diagnosis.advice.startswith("Token 1 (`bos_token_id`) before the prompt. ")


def test_a_cache_that_is_not_hit_proves_nothing() -> None:
    fake = FakeVllm(tiny())
    completion = fake._completion

    def cold(body: dict[str, Any]) -> dict[str, Any]:
        fake.kept.clear()
        return completion(body)

    fake._completion = cold  # type: ignore[method-assign]
    with serving(fake) as server:
        found = examined(server.url)["engine-cache"]
    assert found.verdict is Verdict.SKIP
    assert found.summary == "the engine takes nothing from earlier requests"


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ((500, {"error": {"message": "kernel panic"}}), "answers 500: “kernel panic”"),
        ((429, {"error": "too many"}), "answers 429: “too many” (4 times)"),
        ((200, b"\x00\xff garbage"), "not JSON"),
        ((200, {"choices": []}), "the answer has no `choices.0`"),
    ],
)
def test_a_server_that_breaks_midway_is_one_line_and_what_was_measured_is_kept(
    answer: tuple[int, Any], line: str
) -> None:
    fake, asked = FakeVllm(tiny()), []

    def breaking(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        asked.append(path)
        return answer if len(asked) > 50 and body else fake(path, body)

    kept: list[Finding] = []
    with serving(breaking) as server, examined_in_engine(server.url, Settings()) as examination:
        try:
            kept.extend(examination.findings())
            words = [case.note for each in kept for case in each.cases if line in case.note]
        except EngineGone as error:
            words = [str(error)]
    assert words
    assert all(line in each and "\n" not in each for each in words)
    assert {each.probe: each.verdict for each in kept}["engine-repeat"] is Verdict.PASS


def test_a_server_that_is_killed_ends_the_command_with_what_was_measured(tmp_path: Path) -> None:
    fake, asked = FakeVllm(tiny()), []

    def dying(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        asked.append(path)
        if len(asked) > 50:
            raise OSError("gone")  # the connection is closed without an answer
        return fake(path, body)

    with serving(dying) as server:
        command = [
            "serve-check",
            server.url,
            "--no-progress",
            "--report",
            f"json={tmp_path}/r.json",
        ]
        result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert result.output.count("no answer: ") == 1
    assert "engine-repeat" in (tmp_path / "r.json").read_text()


def test_no_known_api_is_one_line() -> None:
    with (
        serving(lambda path, body: (404, {"error": "nothing here"})) as server,
        pytest.raises(TargetError, match="/v1/models: answers 404: “nothing here”"),
    ):
        examined(server.url)


@pytest.mark.slow
def test_a_real_llama_server_passes_and_a_planted_base_is_named(
    tmp_path: Path, folder: Path
) -> None:
    path = write_gguf(tiny(), tmp_path / "tiny.gguf")
    with llama_server(path) as url:
        found = examined(url, weights=str(folder))
    assert verdicts(found) == {
        "weights": "pass",
        "repeat": "pass",
        "scoring": "skip",
        "decode": "pass",
        "chunks": "skip",
        "cache": "pass",
        "batch": "pass",
    }
    assert all(control.detected for each in found.values() for control in each.controls)
    assert sum(len(each.controls) for each in found.values()) == 4
    warm = found["engine-cache"].cases
    assert [case.note for case in warm][:2] == [
        "95 of 96 tokens from the cache",
        "48 of 96 tokens from the cache",
    ]
    with llama_server(path, rope_freq_base=777.0) as url:
        wrong = examined(url, weights=str(folder))["engine-weights"].diagnosis
    assert wrong is not None
    assert (wrong.fault, wrong.how) == ("rope-base", "reproduced")
    assert wrong.advice.startswith(f"Rope_theta 777 where the config says {BASE:g}. ")


@pytest.mark.slow
def test_weights_converted_for_the_other_rotation_are_named(tmp_path: Path, folder: Path) -> None:
    path = write_gguf(tiny(), tmp_path / "tiny.gguf", permuted=False)
    with llama_server(path) as url:
        wrong = examined(url, weights=str(folder))["engine-weights"].diagnosis
    assert wrong is not None
    assert (wrong.fault, wrong.how) == ("rope-pairing", "reproduced")
