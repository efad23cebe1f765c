"""The checks as pytest tests: one for each probe and model, with the table as the failure message.

    pytest --attncheck=org/name,builtin:gqa
    [tool.pytest.ini_options]  attncheck_suite = "attncheck.yaml"

Loading this module loads neither torch nor transformers: pytest imports it in every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attncheck.report.model import Report
    from attncheck.suite.plan import Job, Plan

COMMAND = "pytest --attncheck"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--attncheck`, `--attncheck-suite`, and `attncheck_suite` in the ini file."""
    group = parser.getgroup("attncheck", "attention checks")
    group.addoption(
        "--attncheck", metavar="TARGET[,…]", help="Run attncheck's probes on these models."
    )
    group.addoption("--attncheck-suite", metavar="FILE", help="Run an attncheck suite.")
    group.addoption(
        "--attncheck-probe", metavar="NAME[,…]", default="", help="Only these probes (globs)."
    )
    parser.addini("attncheck_suite", "An attncheck suite, relative to the ini file.")


def pytest_collection(session: pytest.Session) -> None:
    """Reject a wrong suite or probe before anything is collected."""
    _plan(session.config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add one test for each probe on each model, before `-k` and `-m` choose among all."""
    plan = _plan(config)
    if plan is not None:
        items.extend(_Jobs.from_parent(session, name="attncheck", plan=plan).collect())


def _plan(config: pytest.Config) -> Plan | None:
    """The plan of the options; the suite of the ini file runs where no targets are given."""
    from attncheck.core.errors import AttncheckError

    targets, suite = config.getoption("--attncheck"), config.getoption("--attncheck-suite")
    from_ini = config.getini("attncheck_suite")
    if not targets and not suite and from_ini and config.inipath is not None:
        suite = str(config.inipath.parent / from_ini)
    if not targets and not suite:
        return None
    probes = tuple(name for name in config.getoption("--attncheck-probe").split(",") if name)
    try:
        return _planned(tuple(name for name in (targets or "").split(",") if name), suite, probes)
    except AttncheckError as error:
        raise pytest.UsageError(f"attncheck: {error}") from error


def _planned(targets: tuple[str, ...], suite: str | None, probes: tuple[str, ...]) -> Plan:
    from attncheck.core.settings import Settings
    from attncheck.suite.plan import Selection
    from attncheck.suite.request import RunRequest
    from attncheck.targets.target import parse

    for target in targets:
        parse(target)
    return RunRequest(
        targets=targets,
        suite=Path(suite) if suite else None,
        settings=Settings(),
        selection=Selection(probes=probes),
    ).plan()


class _Jobs(pytest.Collector):
    """The jobs of a plan; each probe of each is one test."""

    def __init__(self, *, plan: Plan, **rest: Any) -> None:
        super().__init__(**rest)
        self.plan = plan

    def collect(self) -> Iterator[ProbeItem]:
        """One item for each probe of each job."""
        for job in self.plan.jobs:
            for call in job.probes:
                yield ProbeItem.from_parent(
                    self, name=_name(job, call[0]), job=replace(job, probes=(call,)), plan=self.plan
                )


def _name(job: Job, probe: str) -> str:
    axes = (
        job.settings.attn,
        job.settings.cache,
        *(v for v in (job.settings.dtype, job.settings.device) if v != "auto"),
    )
    return f"{probe}[{'-'.join([job.target, *(str(axis) for axis in axes if axis)])}]"


class ProbeItem(pytest.Item):
    """One probe on one model."""

    def __init__(self, *, job: Job, plan: Plan, **rest: Any) -> None:
        super().__init__(**rest)
        self.job, self.plan = job, plan
        self.add_marker("attncheck")
        for tag in sorted(job.tags):
            self.extra_keyword_matches.add(tag)

    def runtest(self) -> None:
        """Run the probe; a skip skips, a known finding is an expected failure."""
        report = self._report()
        for _, finding in report.findings:
            if finding.known is not None:
                pytest.xfail(f"{finding.verdict.value}, {finding.known}")
            if finding.skip_reason is not None and report.exit_code == 5:
                pytest.skip(finding.skip_reason)
        report.raise_for_failures()

    def _report(self) -> Report:
        from attncheck.core.verdict import STRICT
        from attncheck.report import baseline
        from attncheck.run.gate import Gate
        from attncheck.run.session import Session

        session = Session(
            command=COMMAND,
            listener=lambda event, report: None,
            fail_on=self.plan.fail_on | (STRICT if self.plan.strict else frozenset()),
            loader=_loaded,
            gate=Gate(baseline=baseline.read(self.plan.baseline) if self.plan.baseline else None),
        )
        session.run([self.job])
        for target in session.report.targets:
            for note in target.notes:
                self.add_report_section("call", "attncheck", note)
        return session.finished(session.report.exit_code)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The table for what the probe found; a traceback for every other error."""
        from attncheck.core.errors import AttncheckError, ChecksFailed

        if isinstance(excinfo.value, (ChecksFailed, AttncheckError)):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The suite and the line of the model in it, or the folder."""
        file, _, line = self.job.where.rpartition(":")
        return (
            Path(file) if file else self.config.rootpath,
            int(line) - 1 if line.isdigit() else None,
            self.name,
        )


def _loaded(job: Job) -> Any:
    """The subject of a job, kept for the next test on the same model."""
    from attncheck.run.session import load_job

    key = (job.target, job.settings)
    if key not in _KEPT:
        _KEPT.clear()
        _KEPT[key] = load_job(job)
    return _KEPT[key]


_KEPT: dict[Any, Any] = {}


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker for `--strict-markers`."""
    config.addinivalue_line("markers", "attncheck: a probe of attncheck on a model")


def pytest_sessionfinish() -> None:
    """Release the last model."""
    _KEPT.clear()
