"""`attncheck replay REPORT [ID]`: run the failures of a saved report again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attncheck.cli.options import ModelOptions, argument, expanded, shown
from attncheck.cli.streams import guarded
from attncheck.core.errors import MOST, UsageError, unknown
from attncheck.core.settings import Settings
from attncheck.core.visible import shortened, visible

if TYPE_CHECKING:
    from attncheck.core.finding import Finding
    from attncheck.report.model import Report, TargetReport


@expanded
def replay(
    *,
    report: Path = argument("A report written by `--report json=PATH`.", "REPORT"),
    which: str | None = argument("PROBE or TARGET/PROBE; by default all failures.", "ID", None),
    options: ModelOptions,
    script: bool = shown(False, "Print a script that needs only torch and transformers."),
) -> None:
    """Run the failures of a saved report again.

    Exit code 1 if one still fails. Options for the model replace what the report recorded.
    """
    given, fails = options.settings(), False
    for target, finding in _chosen(_read(report), which):
        settings = _settings(report, target, given)
        fails |= _script(target, finding, settings) if script else _again(target, finding, settings)
    raise typer.Exit(1 if fails else 0)


def _read(path: Path) -> Report:
    from attncheck.report.record import from_json

    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: not a report of this tool ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return shortened(str(error) or repr(error), MOST)


def _chosen(report: Report, which: str | None) -> list[tuple[TargetReport, Finding]]:
    from attncheck.core.verdict import Verdict

    every = [(target, finding) for target in report.targets for finding in target.results]
    if which is None:
        failed = [
            (target, finding)
            for target, finding in every
            if finding.verdict is Verdict.FAIL and finding.probe != "load"
        ]
        if not failed:
            raise UsageError("the report holds no failure to run again")
        return failed
    names = [f"{target.target}/{finding.probe}" for target, finding in every]
    named = [
        each for each, name in zip(every, names, strict=True) if which in (each[1].probe, name)
    ]
    if not named:
        raise UsageError(unknown("finding", which, names))
    return named


def _settings(report: Path, target: TargetReport, given: Settings) -> Settings:
    """The recorded settings under those of the command line.

    Only the command line can allow code of the model's repository: a report is data.

    Raises:
        UsageError: the report holds a setting that there is not.
    """
    asked = target.settings.get("asked") or {}
    recorded = {key: value for key, value in dict(asked).items() if key in vars(given)}
    if recorded.pop("trust_remote_code", False) and not given.trust_remote_code:
        typer.echo(
            f"attncheck: {target.target} was checked with --trust-remote-code: "
            "its code runs only where the option is given here",
            err=True,
        )
    recorded = {"dtype": target.settings.get("dtype", "auto"), **recorded, **given.changes()}
    try:
        return Settings(**recorded)
    except UsageError as error:
        raise UsageError(f"{report}: {target.target}: {error}") from error


def _again(target: TargetReport, finding: Finding, settings: Settings) -> bool:
    """Whether the finding still fails; both numbers are shown."""
    from attncheck.diagnosis.replay import run_again
    from attncheck.targets.load import load

    with guarded():
        outcome = run_again(load(target.target, settings), finding)
    typer.echo(visible(f"{target.target}/{finding.probe}: {outcome.text}"))
    return outcome.fails


def _script(target: TargetReport, finding: Finding, settings: Settings) -> bool:
    """Print a script that shows the fault, or say on stderr why there is none."""
    import tempfile

    from attncheck.core.errors import Unsupported
    from attncheck.diagnosis.repro import offered
    from attncheck.targets.load import load

    with tempfile.TemporaryDirectory() as folder:
        try:
            with guarded():
                script = offered(load(target.target, settings), finding, Path(folder))
        except Unsupported as reason:
            typer.echo(f"{target.target}/{finding.probe}: no script: {reason}", err=True)
            return False
        typer.echo(script.read_text(encoding="utf-8"))
    return True
