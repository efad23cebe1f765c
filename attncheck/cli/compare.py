"""`attncheck compare` and what it shares with `attncheck record`: two runs side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from attncheck.cli import options as o
from attncheck.cli.options import check_dtype, prompt_text
from attncheck.cli.ranked import ended, hush
from attncheck.core.errors import UsageError
from attncheck.core.settings import Settings

Left = Annotated[
    str, typer.Argument(metavar="A", help="A target, or a trace that `attncheck record` wrote.")
]
Right = Annotated[
    str | None,
    typer.Argument(
        metavar="[B]", help="Another target or trace; left out, A under other settings."
    ),
]
OfLeft = Annotated[
    list[str] | None,
    typer.Option(
        "--left",
        envvar="ATTNCHECK_LEFT",
        help="Settings of A: attn=eager,dtype=float32 (repeatable).",
    ),
]
OfRight = Annotated[
    list[str] | None, typer.Option("--right", envvar="ATTNCHECK_RIGHT", help="Settings of B.")
]


def compare(
    left: Left,
    right: Right = None,
    of_left: OfLeft = None,
    of_right: OfRight = None,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    trust_remote_code: o.TrustRemoteCode = False,
    random_init: o.RandomInit = False,
    layers: o.Layers = None,
    seed: o.Seed = 0,
    prompt: o.Prompt = None,
    length: o.Length = None,
    offline: o.Offline = False,
    no_progress: o.NoProgress = False,
    no_color: o.NoColor = False,
) -> None:
    """Two models, two settings of one, or one against a recorded trace: logits, the first diverging
    module, the weights.
    """
    if right is None and not (of_left or of_right):
        raise UsageError("compare needs two sides: give B, or --left and --right settings of A")
    base = Settings(
        dtype=check_dtype(dtype),
        device=device,
        trust_remote_code=trust_remote_code,
        random_init=random_init,
        layers=layers,
        seed=seed,
        prompt=prompt_text(prompt),
        length=length,
        offline=offline,
    )
    from attncheck.cli.present import console
    from attncheck.cli.progress import Progress
    from attncheck.compare.page import print_page
    from attncheck.compare.sides import changed, compare_sides

    settings = changed(base, of_left or []), changed(base, of_right or [])
    if any(each.tp for each in settings):
        hush()
    with Progress(not no_progress, 1) as bar:
        sides = compare_sides(left, right or left, *settings, bar.says)
    print_page(sides, console(not no_color))
    raise typer.Exit(ended(1 if sides.verdict == "different" else 0))
