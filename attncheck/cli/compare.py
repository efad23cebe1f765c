"""`attncheck compare`: two models, or one model under two settings, side by side."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from attncheck.cli.gate import gated
from attncheck.cli.options import (
    DisplayOptions,
    ModelOptions,
    argument,
    expanded,
    option,
    shown,
)
from attncheck.cli.ranked import ended, hush
from attncheck.cli.run_options import Format
from attncheck.cli.streams import guarded
from attncheck.cli.terminal import ProgressLine, console
from attncheck.core.errors import UsageError
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.targets.target import is_engine

_side = partial(option, panel="Sides")
RECORDING = ".safetensors"


@expanded
def compare(
    *,
    left: str = argument("A target, or a file that `attncheck record` wrote.", "A"),
    right: str | None = argument("Another target or file; by default A again.", "B", None),
    of_left: list[str] | None = _side(
        None, "Settings of A, such as attn=eager,dtype=float32.", "NAME=VALUE,...", "--left"
    ),
    of_right: list[str] | None = _side(None, "Settings of B.", "NAME=VALUE,...", "--right"),
    left_weights: Path | None = _side(
        None, "Give A the weights of this file: .safetensors, .gguf or torch's.", "FILE"
    ),
    right_weights: Path | None = _side(None, "Give B the weights of this file.", "FILE"),
    quick: bool = shown(False, "Compare in three calls only, instead of all that both take."),
    verbose: bool = shown(
        False, "Show which module of B holds each value of A.", None, "-v", "--verbose"
    ),
    output: Format = shown(Format.table, "Print results in this format.", "table|json", "--format"),
    options: ModelOptions,
    display: DisplayOptions,
) -> None:
    """Compare two models, settings or recordings side by side.

    Compares logits, modules and weights, and names what is wrong in one of them where putting it
    right makes all logits equal. One side may be an engine: mlx:FOLDER, or a URL. Exit code 1 if
    the two differ by more than rounding.
    """
    if right is None and not (of_left or of_right or left_weights or right_weights):
        raise UsageError("compare needs two sides: give B, or --left and --right settings of A")
    base = options.settings()
    if right is not None and any(map(is_engine, (left, right))):
        raise typer.Exit(_in_engine(left, right, base, display))
    recorded = [side for side in (left, right) if side and side.endswith(RECORDING)]
    if recorded:
        held_against(recorded, left, right, base, of_right or of_left, output, display)
    from attncheck.compare.page import print_page
    from attncheck.compare.page_json import comparison_json
    from attncheck.compare.sides import changed, compare_sides

    settings = changed(base, of_left or []), changed(base, of_right or [])
    if any(each.tp for each in settings):
        hush()
    with guarded(), ProgressLine(not display.no_progress) as line:
        files = (left_weights, right_weights)
        say = line.show
        compared = compare_sides(left, right or left, *settings, say, quick, files, verbose)
    code = 1 if compared.verdict == "different" else 0
    if output is Format.table:
        print_page(compared, console(not display.no_color))
    else:
        typer.echo(comparison_json(compared, exit_code=code))
    raise typer.Exit(ended(code))


def _in_engine(left: str, right: str, settings: Settings, display: DisplayOptions) -> int:
    """Compare an engine with the model on the other side; the exit code."""
    from attncheck.engines.examination import compared_in_engine
    from attncheck.report.table import finding_block

    with guarded(), ProgressLine(not display.no_progress) as line:
        name, finding = compared_in_engine(left, right, settings, line.show)
    shown = console(not display.no_color)
    shown.print(f"{name} against {left if name == right else right}")
    for block in finding_block(finding):
        shown.print(block)
    return 1 if finding.verdict is Verdict.FAIL else 0


def held_against(
    recorded: list[str],
    left: str,
    right: str | None,
    settings: Settings,
    changes: list[str] | None,
    output: Format,
    display: DisplayOptions,
) -> None:
    """Hold the model on one side against the recording on the other, as `gate` does.

    Raises:
        UsageError: both sides are recordings.
    """
    from attncheck.compare.sides import changed

    if right is None or len(recorded) > 1:
        raise UsageError(f"{recorded[0]}: a recording is compared with a model: give one")
    model = right if recorded[0] == left else left
    gated(Path(recorded[0]), model, changed(settings, changes or []), (), output, display)
