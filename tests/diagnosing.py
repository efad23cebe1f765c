"""What tests of the diagnosis share: a failure explained, and a model whose rotary table depends on
the length.
"""

from __future__ import annotations

from typing import Any

from conftest import tiny_llama

from attncheck.core import registry
from attncheck.core.finding import Finding
from attncheck.diagnosis.diagnose import diagnose
from attncheck.model.subject import Subject
from attncheck.run.runner import finding_of


def explained(subject: Subject, probe: str) -> Finding:
    return diagnose(subject, finding_of(subject, registry.load(probe)))


def rotary(scheme: str) -> Any:
    """A two-layer model whose rotary table depends on the length of the call."""
    tables = {
        "longrope": {
            "original_max_position_embeddings": 16,
            "short_factor": [1.0] * 4,
            "long_factor": [2.0, 4.0, 8.0, 16.0],
        },
        "dynamic": {"factor": 2.0},
    }
    table = {"rope_type": scheme, "rope_theta": 10000.0, **tables[scheme]}
    return tiny_llama(
        max_position_embeddings=16 if scheme == "dynamic" else 64, rope_parameters=table
    )
