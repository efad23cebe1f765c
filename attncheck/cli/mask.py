"""`attncheck mask`: what each query really reads, layer by layer, against what the config promises."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from attncheck.cli import options as o
from attncheck.cli.options import check_dtype, prompt_text
from attncheck.core.errors import UsageError
from attncheck.core.settings import Settings

if TYPE_CHECKING:
    from rich.text import Text

    from attncheck.run.mask_map import Ask, LayerMap

WIDEST = 72
Side = Literal["left", "right"]

Target = Annotated[
    str,
    typer.Argument(
        help="Hub id, folder, .gguf file, builtin:NAME, config:TYPE or file.py:factory."
    ),
]
Attn = Annotated[
    str | None, typer.Option("--attn", envvar="ATTNCHECK_ATTN", help="Attention implementation.")
]
Padding = Annotated[
    str,
    typer.Option(
        "--padding", envvar="ATTNCHECK_PADDING", help="left:N or right:N slots of padding."
    ),
]
Chunks = Annotated[
    str,
    typer.Option(
        "--chunks", envvar="ATTNCHECK_CHUNKS", help="Feed in these pieces on a cache: 8,1,15."
    ),
]
Packed = Annotated[
    str,
    typer.Option(
        "--packed", envvar="ATTNCHECK_PACKED", help="Documents of these lengths in one row: 8,16."
    ),
]
Layer = Annotated[
    list[int] | None,
    typer.Option("--layer", envvar="ATTNCHECK_LAYER", help="Only this layer (repeatable)."),
]
Svg = Annotated[
    Path | None, typer.Option("--svg", envvar="ATTNCHECK_SVG", help="Write the maps as SVG there.")
]
Png = Annotated[
    Path | None, typer.Option("--png", envvar="ATTNCHECK_PNG", help="Write the maps as PNG there.")
]


def mask(
    target: Target,
    padding: Padding = "",
    chunks: Chunks = "",
    packed: Packed = "",
    layer: Layer = None,
    svg: Svg = None,
    png: Png = None,
    attn: Attn = None,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    random_init: o.RandomInit = False,
    layers: o.Layers = None,
    seed: o.Seed = 0,
    prompt: o.Prompt = None,
    length: o.Length = None,
    offline: o.Offline = False,
    no_color: o.NoColor = False,
) -> None:
    """Draw what each query position can really read. Exit code 1 where a layer reads something else
    than promised.
    """
    settings = Settings(
        attn=attn,
        dtype=check_dtype(dtype),
        device=device,
        revision=revision,
        trust_remote_code=trust_remote_code,
        random_init=random_init,
        layers=layers,
        seed=seed,
        prompt=prompt_text(prompt),
        length=length,
        offline=offline,
    )
    side, slots = _padding(padding)
    sizes, documents = _lengths("--chunks", chunks), _lengths("--packed", packed)
    from attncheck.run.mask_map import Ask

    found = _maps(
        target,
        settings,
        Ask(padding=slots, side=side, chunks=sizes, documents=documents),
        layer or [],
    )
    _show(found, not no_color)
    _write(found, svg, png)
    raise typer.Exit(0 if all(each.holds for each in found) else 1)


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


def _maps(target: str, settings: Settings, ask: Ask, wanted: list[int]) -> list[LayerMap]:
    from attncheck.core.errors import TargetError, Unsupported
    from attncheck.run.mask_map import maps
    from attncheck.targets.load import load

    subject = load(target, settings)
    try:
        found = maps(subject, ask)
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
    from attncheck.cli.present import console
    from attncheck.run.mask_map import alike, shrunk

    out = console(color)
    out.print(
        Text(
            "queries from top to bottom, keys from left to right; "
            + ", ".join(f"{s} {w}" for s, w in MEANING.items())
        )
    )
    for group in alike(found):
        first = group[0]
        out.print(Text(f"\n{titled(group)}", style="bold"))
        said = (
            "reads what is promised"
            if not first.wrong
            else f"{first.wrong} pairs are not as promised"
        )
        reason = f" ({first.excuse})" if first.wrong and first.excuse else ""
        style = "green" if not first.wrong else "yellow" if first.holds else "bold red"
        out.print(Text(f"{said}{reason}, seen at the {first.how}", style=style))
        for row in shrunk(first.rows, WIDEST):
            out.print(_coloured(row), no_wrap=True)


def _coloured(row: str) -> Text:
    from rich.text import Text

    styles = {"#": "blue", "+": "bold red", "-": "bold yellow", ".": "dim"}
    text = Text()
    for sign in row:
        text.append(sign, style=styles.get(sign, ""))
    return text


def _write(found: list[LayerMap], svg: Path | None, png: Path | None) -> None:
    from attncheck.cli import mask_drawing as mapdraw

    if svg is not None:
        svg.write_text(mapdraw.svg(found), encoding="utf-8")
    if png is not None:
        png.write_bytes(mapdraw.png(found))
