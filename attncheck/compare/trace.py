"""A recording as a file: tensors in safetensors, the rest as JSON in its header. Readable by every
release.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from attncheck.compare.record import RecordedForward, Recording
from attncheck.core.errors import TargetError, first_line
from attncheck.numerics.module_outputs import ModuleOutput

SCHEMA = "attncheck-trace/1"
SUFFIX = ".safetensors"


def save(recording: Recording, path: Path) -> None:
    """Write a recording."""
    tensors: dict[str, Tensor] = {
        f"weights/{name}": value for name, value in recording.weights.items()
    }
    ways = []
    for number, way in enumerate(recording.ways):
        tensors |= {
            f"ways/{number}/logits": way.logits_BTV.contiguous(),
            f"ways/{number}/real": way.real_BT.contiguous(),
        }
        for place, each in enumerate(way.outputs.values()):
            tensors[f"ways/{number}/prints/{place}"] = each.print_BTK.contiguous()
        events = [
            {"module": module, "side": side, "floor": each.floor}
            for (module, side), each in way.outputs.items()
        ]
        ways.append({"name": way.name, "budget": way.budget, "events": events})
    said = {
        "schema": SCHEMA,
        "name": recording.name,
        "rows": recording.rows,
        "pad": recording.pad,
        "dtype": recording.dtype,
        "meta": recording.meta,
        "ways": ways,
    }
    save_file(tensors, str(path), metadata={"attncheck": json.dumps(said)})


def load(path: Path) -> Recording:
    """Read a recording.

    Raises:
        TargetError: no such file, or not a recording of this form.
    """
    if not path.is_file():
        raise TargetError(f"{path}: no such file")
    try:
        with safe_open(str(path), framework="pt") as file:
            said = json.loads((file.metadata() or {}).get("attncheck", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    except (SafetensorError, OSError, ValueError) as error:
        raise TargetError(f"{path}: not a recording ({first_line(error)})") from error
    if said.get("schema") != SCHEMA:
        raise TargetError(f"{path}: expected a recording of `{SCHEMA}`, got `{said.get('schema')}`")
    return Recording(
        name=said["name"],
        rows=tuple(tuple(row) for row in said["rows"]),
        pad=said["pad"],
        dtype=said["dtype"],
        ways=tuple(_way(number, way, tensors) for number, way in enumerate(said["ways"])),
        weights={
            name.removeprefix("weights/"): value
            for name, value in tensors.items()
            if name.startswith("weights/")
        },
        meta=dict(said["meta"]),
    )


def _way(number: int, said: dict[str, Any], tensors: dict[str, Tensor]) -> RecordedForward:
    outputs = {
        (each["module"], each["side"]): ModuleOutput(
            tensors[f"ways/{number}/prints/{place}"], each["floor"]
        )
        for place, each in enumerate(said["events"])
    }
    real_BT = tensors[f"ways/{number}/real"].to(torch.bool)
    return RecordedForward(
        said["name"], tensors[f"ways/{number}/logits"], real_BT, said["budget"], outputs
    )
