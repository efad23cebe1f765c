"""Each symptom has its probes and axes."""

from __future__ import annotations

import pytest

from attncheck.core.errors import UsageError
from attncheck.triage.routes import present, route


def test_symptoms_have_routes_and_typing_errors_the_nearest() -> None:
    assert route("cache").axes == ("schedule", "cache")
    assert present(["labels", "no-such-probe"], ["labels", "padding"]) == ["labels"]
    with pytest.raises(UsageError, match="unknown symptom `cach`: did you mean `cache`"):
        route("cach")
