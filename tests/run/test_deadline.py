"""A target whose time is up says what it was doing."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.report.model import Report
from attncheck.run.deadline import TimeUp, at_home, time_limit
from attncheck.run.session import Session
from attncheck.suite.plan import Job
from attncheck.targets.load import load

LIMIT = 1000.0


def strike() -> None:
    """The time is up now."""
    signal.raise_signal(signal.SIGALRM)


def slow_cache(job: Job, swallowed: int = 0) -> Subject:
    """The built-in model, whose second attention layer hangs on a filled cache until the time is
    up, and as often as told goes on then.
    """
    subject = load("builtin:gqa", job.settings)

    def hang(module: Any, args: Any, kwargs: Any) -> None:
        past = kwargs.get("past_key_values", kwargs.get("cache"))
        if past is not None and past.get_seq_length():
            for _ in range(swallowed):
                with contextlib.suppress(BaseException):
                    strike()
            strike()

    subject.model.model.layers[1].self_attn.register_forward_pre_hook(hang, with_kwargs=True)
    return subject


def checked(*targets: str, loader: Any) -> Report:
    probes = (("kv-groups", {}), ("decode-paths", {}), ("labels", {}))
    session = Session(
        command="",
        listener=lambda event, report: None,
        loader=loader,
        limit=partial(time_limit, LIMIT),
    )
    return session.run([Job(target=each, settings=Settings(), probes=probes) for each in targets])


@pytest.mark.parametrize("swallowed", [0, 2])
def test_a_hang_names_the_forward_and_the_module(swallowed: int) -> None:
    report = checked("builtin:gqa", loader=partial(slow_cache, swallowed=swallowed))
    (target,) = report.targets
    hung = target.results[-1]
    assert hung.verdict is Verdict.ERROR
    assert hung.summary.startswith("not finished after 1000 seconds, in a forward of 1 x ")
    assert " tokens in chunks of " in hung.summary
    assert ", in model.layers.1.self_attn, in " in hung.summary
    assert "in strike (test_deadline.py:" in hung.summary
    assert (report.exit_code, report.incomplete, target.error) == (3, "", None)


def test_later_targets_run_and_a_hang_in_loading_is_an_error_of_the_target() -> None:
    def loader(job: Job) -> Subject:
        if job.target == "hangs":
            strike()
        return load(job.target, job.settings)

    report = checked("hangs", "builtin:gqa", loader=loader)
    first, second = report.targets
    assert str(first.error).startswith("hangs: not finished after 1000 seconds, in strike (")
    assert [found.verdict for found in second.results] == [Verdict.PASS] * 3
    assert report.exit_code == 2


def test_nothing_is_left_of_a_limit_that_was_kept() -> None:
    with time_limit(0.2):
        pass
    time.sleep(0.3)
    with pytest.raises(TimeUp, match="after 0.1 seconds"), time_limit(0.1):
        time.sleep(5)


def test_home_is_where_it_was(tmp_path: Path) -> None:
    home = Path.cwd()
    with at_home():
        os.chdir(tmp_path)
    assert Path.cwd() == home
