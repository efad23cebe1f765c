"""Whatever is done to a suite, it is read or refused in one line."""

from pathlib import Path

import pytest

from scripts import mutated_suites


def test_2500_mutated_suites_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutated_suites.main(["--count", "2500"]) == 0
    *complaints, last = capsys.readouterr().out.splitlines()
    assert complaints == []
    counts = dict(reversed(part.split()) for part in last.partition(": ")[2].split(", "))
    assert int(counts["refused"]) > 1000
    assert int(counts["read"]) > 250


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("models: [builtin:gqa]\n", "read"),
        ("models: [builtin:nope]\n", "refused"),
    ],
)
def test_a_suite_is_read_or_refused(tmp_path: Path, text: str, found: str) -> None:
    (tmp_path / "suite.yaml").write_text(text)
    assert mutated_suites.outcome(tmp_path / "suite.yaml") == found


def test_a_traceback_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(file: Path) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(mutated_suites, "load_plan", broken)
    assert mutated_suites.outcome(tmp_path / "x.yaml") == "traceback: KeyError: no such key: 'lost'"
    assert mutated_suites.main(["--count", "1"]) == 1
