"""What faults look up in a healthy model before they are injected."""

from __future__ import annotations

from attncheck.faults.engine import injection
from attncheck.model.subject import Subject


def test_what_faults_look_up_runs_once(subject: Subject) -> None:
    assert subject.can.watch
    before = subject.loaded.forwards
    for _ in range(2):
        assert injection.plain_calls(subject)
        assert injection.filled_cache(subject).get_seq_length() == subject.inputs.length
        assert injection.decoder_layers(subject)
    assert subject.loaded.forwards == before + 3


def test_what_runs_under_a_fault_is_looked_up_again(subject: Subject) -> None:
    healthy = injection.filled_cache(subject)
    with subject.passes.under("a fault", on_cache_only=False):
        assert injection.filled_cache(subject) is not healthy
    assert injection.filled_cache(subject) is healthy
