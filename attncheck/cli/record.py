"""`attncheck record`: write down a run, to compare it on another machine or release."""

from __future__ import annotations

from pathlib import Path

import typer

from attncheck.cli.options import TARGET, DisplayOptions, ModelOptions, argument, expanded, shown
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
    if not output.resolve().parent.is_dir():
        raise UsageError(f"--output {output}: no such folder `{output.parent}`")
    settings = options.settings()
    from attncheck.cli.terminal import ProgressLine
    from attncheck.compare.record import record as recorded
    from attncheck.compare.record import save
    from attncheck.targets.load import load

    with ProgressLine(not display.no_progress) as line:
        line.show(f"loading {target}")
        recording = recorded(load(target, settings))
    save(recording, output)
    typer.echo(
        f"{output}: {recording}, {len(recording.forwards)} call patterns, "
        f"{len(recording.weights)} weights"
    )
