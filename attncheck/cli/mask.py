"""`attncheck mask`: which keys each query really reads, layer by layer, against the config."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from attncheck.cli.options import (
    TARGET,
    DisplayOptions,
    ModelOptions,
    argument,
    expanded,
    option,
    shown,
)
from attncheck.cli.outputs import check_files, written
from attncheck.cli.streams import guarded
from attncheck.cli.terminal import ProgressLine, console
from attncheck.core.errors import UsageError
from attncheck.core.settings import Settings

if TYPE_CHECKING:
    from rich.text import Text

    from attncheck.run.mask_map import LayerMap

WIDEST = 72
STYLES = {"#": "blue", "+": "bold red", "-": "bold yellow", ".": "dim"}
Side = Literal["left", "right"]

_call = partial(option, panel="Forward call")


@expanded
def mask(
    *,
    target: str = argument(TARGET, "TARGET"),
    padding: str = _call("", "Pad the input on one side.", "left:N|right:N"),
    chunks: str = _call("", "Feed the input to a cache in chunks of these lengths.", "8,1,15"),
    packed: str = _call("", "Pack documents of these lengths into one sequence.", "8,16"),
    options: ModelOptions,
    layer: list[int] | None = shown(None, "Show only this layer (repeatable).", "N"),
    svg: Path | None = shown(None, "Write the maps as SVG.", "FILE"),
    png: Path | None = shown(None, "Write the maps as PNG.", "FILE"),
    display: DisplayOptions,
) -> None:
    """Draw which keys each query really reads, layer by layer.

    Compares them with the config. Exit code 1 if a layer reads other keys than the config says.
    """
    settings = options.settings()
    side, slots = _padding(padding)
    sizes, documents = _lengths("--chunks", chunks), _lengths("--packed", packed)
    call = {"padding": slots, "side": side, "chunks": sizes, "documents": documents}
    pictures = (("--svg", svg), ("--png", png))
    check_files((f"{option} {path}", path) for option, path in pictures if path is not None)
    svg, png = (path and path.absolute() for path in (svg, png))
    with guarded(), ProgressLine(not display.no_progress) as line:
        line.show(f"loading {target}")
        found = _maps(target, settings, call, layer or [])
    _show(found, not display.no_color)
    _write(found, svg, png)
    raise typer.Exit(0 if all(each.passed for each in found) else 1)


def _padding(text: str) -> tuple[Side, int]:
    if not text:
        return "left", 0
    side, _, slots = text.partition(":")
    if side not in ("left", "right") or not slots.isdigit():
        raise UsageError(f"--padding {text}: expected left:N or right:N, for instance left:5")
    return ("left" if side == "left" else "right"), int(slots)


def _lengths(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise UsageError(f"{option} {text}: expected lengths, for instance 8,1,15")
    return tuple(int(part) for part in parts)


def _maps(
    target: str, settings: Settings, call: dict[str, Any], wanted: list[int]
) -> list[LayerMap]:
    from attncheck.core.errors import TargetError, Unsupported
    from attncheck.run.mask_map import layer_maps, map_spec
    from attncheck.targets.load import load

    subject = load(target, settings)
    try:
        found = layer_maps(subject, map_spec(subject, **call))
    except Unsupported as reason:
        raise TargetError(f"{target}: {reason}") from reason
    chosen = [each for each in found if not wanted or each.index in wanted]
    if not chosen:
        here = ", ".join(str(each.index) for each in found) or "none"
        raise UsageError(f"--layer: no such attention layer; this model has {here}")
    return chosen


def _show(found: list[LayerMap], color: bool) -> None:
    from rich.text import Text

    from attncheck.cli.mask_drawing import MEANING, titled
    from attncheck.run.mask_map import alike, shrunk

    out = console(color)
    legend = ", ".join(f"{sign} {meaning}" for sign, meaning in MEANING.items())
    out.print(Text(f"queries from top to bottom, keys from left to right; {legend}"))
    for group in alike(found):
        out.print(Text(f"\n{titled(group)}", style="bold"))
        out.print(_judged(group[0]))
        for row in shrunk(group[0].rows, WIDEST):
            out.print(Text.assemble(*((sign, STYLES.get(sign, "")) for sign in row)), no_wrap=True)


def _judged(layer: LayerMap) -> Text:
    from rich.text import Text

    if not layer.wrong:
        return Text(f"reads the expected keys, seen at the {layer.how}", style="green")
    reason = f" ({layer.exemption})" if layer.exemption else ""
    text = f"{layer.wrong} pairs are not as expected{reason}, seen at the {layer.how}"
    return Text(text, style="yellow" if layer.passed else "bold red")


def _write(found: list[LayerMap], svg: Path | None, png: Path | None) -> None:
    from attncheck.cli import mask_drawing

    if svg is not None:
        written(f"--svg {svg}", svg, mask_drawing.svg(found))
    if png is not None:
        written(f"--png {png}", png, mask_drawing.png(found))
