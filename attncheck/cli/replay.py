"""`attncheck replay REPORT [ID]`: run again exactly what a saved report recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attncheck.core.errors import UsageError
from attncheck.core.settings import Settings

if TYPE_CHECKING:
    from attncheck.core.finding import Finding
    from attncheck.report.model import Report, TargetReport

SavedReport = Annotated[Path, typer.Argument(help="A report written by `--report json=PATH`.")]
Id = Annotated[
    str | None,
    typer.Argument(
        help="PROBE or TARGET/PROBE; without it, everything that failed.", show_default=False
    ),
]
Script = Annotated[
    bool,
    typer.Option(
        "--script", help="Print a script that shows the failure with torch and transformers alone."
    ),
]


def replay(report: SavedReport, which: Id = None, script: Script = False) -> None:
    """Run again what failed; exit 1 if it still does."""
    chosen = _chosen(_read(report), which)
    still = False
    for target, finding in chosen:
        still |= _script(target, finding) if script else _again(target, finding)
    raise typer.Exit(1 if still else 0)


def _read(path: Path) -> Report:
    from attncheck.report.model import from_json

    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path}: not a report of this tool ({str(error).splitlines()[0] if str(error) else error!r})"
        ) from error


def _chosen(report: Report, which: str | None) -> list[tuple[TargetReport, Finding]]:
    from attncheck.core.errors import unknown
    from attncheck.core.verdict import Verdict

    failed = [
        (t, f)
        for t in report.targets
        for f in t.results
        if f.verdict is Verdict.FAIL and f.probe != "load"
    ]
    if which is None:
        if not failed:
            raise UsageError("the report holds no failure to run again")
        return failed
    named = [
        (t, f)
        for t in report.targets
        for f in t.results
        if which in (f.probe, f"{t.target}/{f.probe}")
    ]
    if not named:
        raise UsageError(
            unknown(
                "finding",
                which,
                [f"{t.target}/{f.probe}" for t in report.targets for f in t.results],
            )
        )
    return named


def _subject(target: TargetReport) -> Any:
    from attncheck.targets.load import load

    known = set(Settings.__dataclass_fields__)
    spec = {
        key: value for key, value in dict(target.settings.get("asked", {})).items() if key in known
    }
    spec.setdefault("dtype", target.settings.get("dtype", "auto"))
    return load(target.target, Settings(**spec))


def _again(target: TargetReport, finding: Finding) -> bool:
    """Whether the finding still fails; both numbers are shown."""
    from attncheck.diagnosis.replay import run_again

    seen = run_again(_subject(target), finding)
    typer.echo(f"{target.target}/{finding.probe}: {seen.text}")
    return seen.fails


def _script(target: TargetReport, finding: Finding) -> bool:
    """Print the script if it shows the fault, else why there is none on stderr."""
    import tempfile

    from attncheck.core.errors import Unsupported
    from attncheck.diagnosis.repro import offered

    with tempfile.TemporaryDirectory() as folder:
        try:
            typer.echo(offered(_subject(target), finding, Path(folder)).read_text(encoding="utf-8"))
        except Unsupported as reason:
            typer.echo(f"{target.target}/{finding.probe}: no script: {reason}", err=True)
            return False
    return True
