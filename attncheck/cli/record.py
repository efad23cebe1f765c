"""`attncheck record`: write down a run, to compare it on another machine or release."""

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
        Path("trace.safetensors"), "Write the recording here.", "PATH", "-o", "--output"
    ),
    options: ModelOptions,
    display: DisplayOptions,
) -> None:
    """Record logits and fingerprints of a model, for `compare`.

    The file holds a fingerprint of every module's output and of every weight;
    `attncheck compare PATH TARGET` reads it.
    """
    if output.suffix != ".safetensors":
        raise UsageError(f"--output {output}: expected a name that ends in `.safetensors`")
    check_files([(f"--output {output}", output)])
    place = output.absolute()
    settings = options.settings()
    from attncheck.cli.terminal import ProgressLine
    from attncheck.compare.record import record as recorded
    from attncheck.compare.record import save
    from attncheck.report.write import reason_of
    from attncheck.targets.load import load

    with guarded(), ProgressLine(not display.no_progress) as line:
        line.show(f"loading {target}")
        recording = recorded(load(target, settings))
    try:
        save(recording, place)
    except OSError as error:
        raise UsageError(f"--output {output}: not written: {reason_of(error)}") from error
    typer.echo(
        f"{output}: {recording}, {len(recording.forwards)} call patterns, "
        f"{len(recording.weights)} weights"
    )
