"""The file of a recording: tensors in safetensors, the rest as JSON in its header.

Read by every later release of the same form. A file that is cut off, changed, of another form or
not ours is refused in one line.

Axes: E events, G stretches of T, K numbers kept for each position, P parameters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from attncheck.core.errors import TargetError, first_line
from attncheck.golden.calls import GoldenCall
from attncheck.golden.measured import MeasuredCall, Rounding
from attncheck.golden.sketch import GROUPS, NUMBERS, Sketches
from attncheck.numerics.module_outputs import Event
from attncheck.report.write import write_bytes

FORM = "attncheck-golden"
VERSION = 1
SCHEMA = f"{FORM}/{VERSION}"
OLD = "attncheck-trace/1"
LIMIT = 4 << 20
"""Bytes of sketches that a recording holds at most; modules deepest inside are left out first."""
WIDE, NARROW = torch.float64, torch.float32


@final
@dataclass(frozen=True)
class GoldenEntry:
    """One recorded call with what it gave and how far rounding moves it."""

    call: GoldenCall
    measured: MeasuredCall
    rounding: Rounding


@final
@dataclass(frozen=True, kw_only=True)
class Golden:
    """A recording. `model` is the `model` block of a report, `weights` the digest of each parameter
    by name, `skipped` what the model could not be asked, with the reasons.
    """

    name: str
    model: Mapping[str, Any]
    vocab: int
    entries: tuple[GoldenEntry, ...]
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        versions = f"attncheck {self.meta.get('attncheck')}, torch {self.meta.get('torch')}"
        return f"{self.name} ({versions}, transformers {self.meta.get('transformers')})"


def save(golden: Golden, path: Path) -> int:
    """Write a recording; its size in bytes.

    Raises:
        OSError: the path cannot be written.
    """
    data = to_data(golden)
    write_bytes(path, data)
    return len(data)


def to_data(golden: Golden) -> bytes:
    """The bytes of the file."""
    depth = _depth(golden)
    tensors: dict[str, Tensor] = {}
    places: dict[Event, int] = {}
    calls = [
        _written(f"calls/{number}", entry, depth, tensors, places)
        for number, entry in enumerate(golden.entries)
    ]
    if golden.weights:
        tensors["weights"] = torch.stack(list(golden.weights.values()))
    header = {
        "schema": SCHEMA,
        "name": golden.name,
        "model": dict(golden.model),
        "vocab": golden.vocab,
        "meta": dict(golden.meta),
        "skipped": dict(golden.skipped),
        "weights": list(golden.weights),
        "events": [list(event) for event in places],
        "calls": calls,
    }
    header["checksum"] = _checksum(header, tensors)
    return to_bytes(tensors, metadata={"attncheck": json.dumps(header)})


def _depth(golden: Golden) -> int:
    """How deep inside the model the modules are whose sketches fit into the limit."""
    sizes: dict[int, int] = {}
    for entry in golden.entries:
        sketches = entry.measured.sketches
        each = (NUMBERS + 2 * GROUPS) * _kind(entry.call).itemsize
        for name, _ in sketches.events:
            sizes[name.count(".")] = sizes.get(name.count("."), 0) + each
    total = 0
    for depth in sorted(sizes):
        total += sizes[depth]
        if total > LIMIT and depth:
            return depth - 1
    return max(sizes, default=0)


def _kind(call: GoldenCall) -> torch.dtype:
    return WIDE if call.dtype == "float64" else NARROW


def _written(
    home: str,
    entry: GoldenEntry,
    depth: int,
    tensors: dict[str, Tensor],
    places: dict[Event, int],
) -> dict[str, Any]:
    found, kind = entry.measured, _kind(entry.call)
    kept = [n for n, event in enumerate(found.sketches.events) if event[0].count(".") <= depth]
    events = [found.sketches.events[number] for number in kept]
    numbers = [places.setdefault(event, len(places)) for event in events]
    tensors[f"{home}/events"] = torch.tensor(numbers, dtype=torch.int32)
    tensors[f"{home}/sketches"] = found.sketches.values_EGK[kept].to(kind)
    tensors[f"{home}/norms"] = found.sketches.norms_EG[kept].to(kind)
    tensors[f"{home}/rounding"] = entry.rounding.norms_EG[kept].to(kind)
    tensors[f"{home}/logits"] = found.logits_NC.to(kind)
    return {
        "call": entry.call.to_json(),
        "places": found.places,
        "best": found.best_N.tolist(),
        "digest": found.digest,
        "lost": found.lost,
        "tokens": found.tokens,
        "largest": entry.rounding.largest,
    }


def _checksum(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    said = {key: value for key, value in header.items() if key != "checksum"}
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def load(path: Path) -> Golden:
    """Read a recording.

    Raises:
        TargetError: no such file, none of ours, damaged, or of a form that this release lacks.
    """
    header, tensors = _read(path)
    if _checksum(header, tensors) != header.get("checksum"):
        raise TargetError(f"{path}: damaged: its content does not have the checksum in it")
    try:
        return _golden(header, tensors)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise TargetError(f"{path}: damaged: {first_line(error)}") from error


def _golden(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Golden:
    events = [(str(name), str(side)) for name, side in header["events"]]
    digests = tensors.get("weights", torch.zeros(0, 4, dtype=WIDE))
    return Golden(
        name=header["name"],
        model=header["model"],
        vocab=header["vocab"],
        entries=tuple(
            _entry(f"calls/{number}", call, tensors, events)
            for number, call in enumerate(header["calls"])
        ),
        weights=dict(zip(header["weights"], digests, strict=True)),
        meta=header["meta"],
        skipped=header["skipped"],
    )


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise TargetError(f"{path}: no such file")
    try:
        with safe_open(str(path), framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("attncheck", "{}"))
            names = file.keys()  # a file, not a dictionary: it cannot be iterated
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TargetError(f"{path}: damaged, or no recording: {reason}") from error
    _check_form(path, header)
    return header, tensors


def _check_form(path: Path, header: Any) -> None:
    schema = str(header.get("schema", "")) if isinstance(header, dict) else ""
    if schema == SCHEMA:
        return
    form, _, version = schema.partition("/")
    if form == FORM and version.isdigit() and int(version) > VERSION:
        raise TargetError(f"{path}: written by a newer attncheck ({schema}, here {SCHEMA})")
    if schema == OLD or form == FORM:
        raise TargetError(
            f"{path}: written by an older attncheck ({schema}): record the model again"
        )
    raise TargetError(f"{path}: no recording of attncheck: `attncheck record` writes one")


def _entry(
    home: str, call: Mapping[str, Any], tensors: Mapping[str, Tensor], events: list[Event]
) -> GoldenEntry:
    here = tuple(events[number] for number in tensors[f"{home}/events"].tolist())
    found = MeasuredCall(
        places=tuple((row, at) for row, at in call["places"]),
        logits_NC=tensors[f"{home}/logits"].double(),
        best_N=torch.tensor(call["best"]),
        digest=call["digest"],
        lost=call["lost"],
        sketches=Sketches(
            here, tensors[f"{home}/sketches"].double(), tensors[f"{home}/norms"].double()
        ),
        tokens=tuple(call["tokens"]),
    )
    rounding = Rounding(call["largest"], here, tensors[f"{home}/rounding"].double())
    return GoldenEntry(GoldenCall.from_json(call["call"]), found, rounding)
