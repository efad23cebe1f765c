"""The schema of reports: the stored file is the one that the types give."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from attncheck.cli.schema import Described, schema


def test_the_stored_schema_is_the_one_that_the_command_writes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    schema(Described.report)
    stored = files("attncheck.report").joinpath("schema.json").read_text(encoding="utf-8")
    assert json.loads(stored) == json.loads(capsys.readouterr().out), (
        "run `attncheck schema report > attncheck/report/schema.json`"
    )
