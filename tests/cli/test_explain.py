"""Documentation is printed from its source, for every probe and every fault."""

from __future__ import annotations

import pytest

from attncheck.__main__ import main
from attncheck.core import registry
from attncheck.faults import registry as faults


@pytest.mark.parametrize("name", [*registry.documented(), *faults.names()])
def test_every_name_has_a_page(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["explain", name]) == 0
    out = capsys.readouterr().out
    assert out.startswith(name)
    assert len(out.splitlines()) > 5


def test_a_mistyped_fault_gets_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "position-restrt"]) == 2
    assert capsys.readouterr().err == (
        "attncheck: unknown probe or fault `position-restrt`: did you mean `position-restart`?\n"
    )
