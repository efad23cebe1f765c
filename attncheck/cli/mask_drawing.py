"""Attention maps as SVG and PNG: one square per pair of query and key; equal layers share one."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from html import escape

from attncheck.run.mask_map import EXTRA, LACKING, NEITHER, READ, UNKNOWN, LayerMap, alike

COLOURS = {
    READ: "#2f6f9f",
    EXTRA: "#d1372c",
    LACKING: "#f0a020",
    NEITHER: "#eceff1",
    UNKNOWN: "#ffffff",
}
MEANING = {
    READ: "read as expected",
    EXTRA: "read but not expected",
    LACKING: "expected but not read",
    NEITHER: "neither",
}
CELL, GAP, HEAD, LEGEND, ACROSS = 8, 24, 18, 24, 4
MOST = 512
MEANS = 140
"""Width of one entry of the legend."""


def titled(group: Sequence[LayerMap]) -> str:
    """The layers that a map stands for, and the keys that they are expected to read."""
    numbers = [str(layer.index) if layer.index is not None else layer.name for layer in group]
    shown = ", ".join(numbers[:6]) + (f", … ({len(numbers)} in all)" if len(numbers) > 6 else "")
    return f"layer{'s' if len(numbers) > 1 else ''} {shown}: {group[0].expected}"


def svg(layers: Sequence[LayerMap]) -> str:
    """The maps as one SVG document; queries from top to bottom, keys from left to right."""
    groups = list(alike(layers))
    side = max(len(group[0].rows) for group in groups) * CELL
    panels = GAP + min(len(groups), ACROSS) * (max(side, 180) + GAP)
    width = max(panels, GAP + len(MEANING) * MEANS)
    lines = -(-len(groups) // ACROSS)
    height = LEGEND + GAP + lines * (side + HEAD + GAP)
    body = [
        part
        for number, group in enumerate(groups)
        for part in _panel(number, group, max(side, 180), side)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="11">',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *_legend(),
            *body,
            "</svg>",
            "",
        ]
    )


def _legend() -> Iterator[str]:
    for place, (sign, words) in enumerate(MEANING.items()):
        x = GAP + place * MEANS
        yield f'<rect x="{x}" y="8" width="10" height="10" fill="{COLOURS[sign]}"/>'
        yield f'<text x="{x + 14}" y="17">{words}</text>'


def _panel(number: int, group: Sequence[LayerMap], wide: int, side: int) -> Iterator[str]:
    x = GAP + (number % ACROSS) * (wide + GAP)
    y = LEGEND + GAP + (number // ACROSS) * (side + HEAD + GAP)
    yield f'<text x="{x}" y="{y}">{escape(titled(group))}</text>'
    for down, row in enumerate(group[0].rows):
        for start, end, sign in _runs(row):
            place = f'x="{x + start * CELL}" y="{y + HEAD - 10 + down * CELL}"'
            size = f'width="{(end - start) * CELL}" height="{CELL}"'
            yield f'<rect {place} {size} fill="{COLOURS[sign]}"/>'


def _runs(row: str) -> Iterator[tuple[int, int, str]]:
    """Stretches of one sign, unknown ones left out."""
    start = 0
    for end in range(1, len(row) + 1):
        if end == len(row) or row[end] != row[start]:
            if row[start] != UNKNOWN:
                yield start, end, row[start]
            start = end


def png(layers: Sequence[LayerMap]) -> bytes:
    """The maps as a PNG image, side by side and without text, for viewers without SVG."""
    groups = [group[0].rows for group in alike(layers)]
    cell = max(1, min(CELL, MOST // max(len(rows) for rows in groups)))
    colours = {sign: bytes.fromhex(colour[1:]) for sign, colour in COLOURS.items()}
    white = colours[UNKNOWN]
    lines = [
        (white * GAP).join(b"".join(colours[sign] * cell for sign in rows[down]) for rows in groups)
        for down in range(len(groups[0]))
        for _ in range(cell)
    ]
    return _encoded(lines)


def _encoded(lines: Sequence[bytes]) -> bytes:
    """A PNG file (ISO 15948) of RGB lines: header, one compressed block, end."""
    header = struct.pack(">IIBBBBB", len(lines[0]) // 3, len(lines), 8, 2, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + line for line in lines), 9)
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
