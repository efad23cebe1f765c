"""Every fault has its page, and reading it loads no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from attncheck.core.errors import UsageError
from attncheck.faults.catalogue import FAULTS
from attncheck.faults.words import GROUPS, NAMES, advice, documentation


def test_every_fault_is_in_one_group() -> None:
    assert len(NAMES) == 41
    assert sorted(name for group in GROUPS for name in group.names) == sorted(NAMES)
    assert set(FAULTS) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_what_where_from_and_what_to_change(name: str) -> None:
    page = documentation(name)
    assert page.startswith(f"{name}\n")
    for heading in (
        "What it is",
        "What it looks like from outside",
        "Where it comes from in practice",
        "What to change",
    ):
        assert f"\n{heading}\n    " in page
    assert len(advice(name)) > 30


def test_a_mistyped_name_is_helped() -> None:
    with pytest.raises(UsageError, match="did you mean `position-restart`"):
        documentation("position-restrat")


def test_no_torch() -> None:
    code = "import sys, attncheck.faults.words as w; w.documentation('softmax-scale'); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
