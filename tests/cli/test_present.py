"""A run that is killed leaves reports that parse and hold everything that was finished."""

import json
import multiprocessing
import os
import random
import signal
import time
import xml.etree.ElementTree as ET
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from attncheck.cli.present import Presenter
from attncheck.core.settings import Settings
from attncheck.report.model import Report
from attncheck.report.schema import first_complaint
from attncheck.report.write import FORMATS
from attncheck.run.session import Session, SessionEvent
from attncheck.suite.plan import Job
from attncheck.targets.load import load

KILLS = 20
PROBES = (("future-token", {}), ("kv-repeat", {}), ("document-leakage", {}))


def run(folder: Path, ready: Connection) -> None:
    """A run of two models without end, as the command line shows and writes it."""
    destinations = [(kind, folder / kind) for kind in FORMATS]
    presenter = Presenter(
        output="quiet",
        destinations=destinations,
        probes=6,
        verbose=False,
        progress=False,
        color=False,
    )

    def hears(event: SessionEvent, report: Report) -> None:
        presenter.listen(event, report)
        ready.send(sum(len(target.results) for target in report.targets))

    session = Session(command="attncheck run", listener=hears)
    while True:
        session.run(
            [
                Job(target=name, settings=Settings(), probes=PROBES)
                for name in ("builtin:gqa", "builtin:broken-mask")
            ]
        )


@pytest.fixture(scope="module")
def _warm() -> None:
    """What the child inherits is loaded once, here."""
    load("builtin:gqa", Settings())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("_warm")
@pytest.mark.parametrize("seed", range(KILLS))
def test_killed_at_a_random_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("attncheck.report.write.AT_ONCE", 3600.0)
    ours, theirs = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(
        target=run, args=(tmp_path, theirs), daemon=True
    )
    child.start()
    theirs.close()
    while not ours.recv():
        pass
    time.sleep(random.Random(seed).uniform(0, 0.4))
    os.kill(int(child.pid or 0), signal.SIGKILL)
    child.join()
    told = 1
    while True:
        try:
            told = ours.recv()
        except EOFError:
            break
    check_what_is_left(tmp_path, told)


def check_what_is_left(folder: Path, told: int) -> None:
    data = json.loads((folder / "json").read_text())
    assert first_complaint(data) == ""
    assert sum(len(target["results"]) for target in data["targets"]) >= told
    cases = ET.parse(folder / "junit").getroot().findall(".//testcase")
    assert len(cases) >= told
    assert json.loads((folder / "sarif").read_text())["version"] == "2.1.0"
    assert (folder / "html").read_text().rstrip().endswith("</html>")
    assert (folder / "markdown").read_text().count("| `") >= told
