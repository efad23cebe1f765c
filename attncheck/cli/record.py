"""`attncheck record`: a small recording of a model, to hold later versions of it against."""

from __future__ import annotations

from pathlib import Path

import typer

from attncheck.cli.options import TARGET, DisplayOptions, ModelOptions, argument, expanded, shown
from attncheck.cli.outputs import check_files
from attncheck.cli.streams import guarded
from attncheck.core.errors import UsageError


@expanded
def record(
    *,
    target: str = argument(TARGET, "TARGET"),
    output: Path = shown(
        Path("golden.safetensors"), "Write the recording here.", "PATH", "-o", "--output"
    ),
    options: ModelOptions,
    display: DisplayOptions,
) -> None:
    """Record a model for `gate`: another release, machine or pull request.

    The file holds some logits of every way to call the model, and sketches of what its modules
    give: a few hundred KB. `attncheck gate PATH TARGET` holds a model against it.
    """
    if output.suffix != ".safetensors":
        raise UsageError(f"--output {output}: expected a name that ends in `.safetensors`")
    check_files([(f"--output {output}", output)])
    place = output.absolute()
    settings = options.settings()
    from attncheck.cli.terminal import ProgressLine
    from attncheck.golden.file import save
    from attncheck.golden.recording import record as recorded
    from attncheck.report.write import reason_of
    from attncheck.run.beginning import environment
    from attncheck.targets.load import load

    with guarded(), ProgressLine(not display.no_progress) as line:
        line.show(f"loading {target}")
        golden = recorded(load(target, settings), environment(), line.show)
    try:
        size = save(golden, place)
    except OSError as error:
        raise UsageError(f"--output {output}: not written: {reason_of(error)}") from error
    calls = f"{len(golden.entries)} calls, {len(golden.weights)} weights, {size / 1024:.0f} KB"
    typer.echo(f"{output}: {golden}, {calls}")
    for name, reason in golden.skipped.items():
        typer.echo(f"not recorded: {name}: {reason}")
