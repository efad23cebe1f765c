"""`attncheck compare`: two models, or one model under two settings, side by side."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from attncheck.cli.options import DisplayOptions, ModelOptions, expanded, option
from attncheck.cli.ranked import ended, hush
from attncheck.core.errors import UsageError

sides = partial(option, panel="Sides", metavar="NAME=VALUE,...")

Left = Annotated[
    str, typer.Argument(metavar="A", help="A target, or a file that `attncheck record` wrote.")
]
Right = Annotated[
    str | None,
    typer.Argument(metavar="B", help="Another target or file; by default A again."),
]
OfLeft = Annotated[
    list[str] | None, sides("Settings of A, such as attn=eager,dtype=float32.", "--left")
]
OfRight = Annotated[list[str] | None, sides("Settings of B.", "--right")]


@expanded
def compare(
    *,
    left: Left,
    right: Right = None,
    of_left: OfLeft = None,
    of_right: OfRight = None,
    options: ModelOptions,
    display: DisplayOptions,
) -> None:
    """Compare two models, settings or recordings side by side.

    Compares logits, modules and weights. Shows the first module that diverges. Exit code 1 if
    the two differ by more than rounding.
    """
    if right is None and not (of_left or of_right):
        raise UsageError("compare needs two sides: give B, or --left and --right settings of A")
    base = options.settings()
    from attncheck.cli.present import console
    from attncheck.cli.progress import ProgressLine
    from attncheck.compare.page import print_page
    from attncheck.compare.sides import changed, compare_sides

    settings = changed(base, of_left or []), changed(base, of_right or [])
    if any(each.tp for each in settings):
        hush()
    with ProgressLine(not display.no_progress) as line:
        compared = compare_sides(left, right or left, *settings, line.show)
    print_page(compared, console(not display.no_color))
    raise typer.Exit(ended(1 if compared.verdict == "different" else 0))
