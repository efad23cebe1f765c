"""A recorded run: the logits of a few forwards, the output of every module, sums of the weights.

A module's output is kept as a fingerprint of a few numbers per position, so that the recording of a
large model stays small. The file holds tensors in safetensors and the rest as JSON in its header;
every release reads it.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from attncheck.compare.calls import SHORTER, Call, quick_calls
from attncheck.core.errors import TargetError, first_line
from attncheck.diagnosis.failure import REFUSED, real_tokens
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Tokens
from attncheck.model.padding import pad_id
from attncheck.model.subject import Subject
from attncheck.model.weights import digests
from attncheck.numerics.module_outputs import ModuleOutput, ModuleOutputs, outputs_with_floors
from attncheck.report.write import write_bytes
from attncheck.run.beginning import environment

SCHEMA = "attncheck-trace/1"
SUFFIX = ".safetensors"


@final
@dataclass(frozen=True)
class RecordedForward:
    """The logits and module outputs of one forward, and how far rounding moves the logits."""

    name: str
    logits_BTV: Tensor
    real_BT: Tensor
    budget: float
    outputs: ModuleOutputs


@final
@dataclass(frozen=True)
class Recording:
    """A whole run. `weights` holds four sums of every tensor, `meta` the versions and settings."""

    name: str
    rows: Tokens
    pad: int
    dtype: str
    forwards: tuple[RecordedForward, ...]
    weights: dict[str, Tensor]
    meta: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        attn, release = self.meta.get("attn"), self.meta.get("transformers")
        return f"{self.name} ({self.dtype}, {attn}, transformers {release})"


def record(
    subject: Subject,
    rows: Tokens = (),
    pad: int | None = None,
    more: Sequence[Call] = (),
) -> Recording:
    """Record a model in the three quick calls as far as it takes them, on `rows` or else on its own
    inputs, and in `more` calls without the outputs of its modules.

    Raises:
        TargetError: the rows hold tokens outside the model's vocabulary.
    """
    inputs = subject.inputs
    rows = rows or (inputs.row, inputs.other(inputs.row, salt=31)[SHORTER:])
    largest, vocab = max(map(max, rows)), subject.facts.vocab
    if largest >= vocab:
        raise TargetError(f"{subject.name}: token {largest} is outside its vocabulary of {vocab}")
    filler = pad_id(subject) if pad is None else pad
    forwards = []
    quick = [(name, spec, True) for name, spec in quick_calls(subject, rows, filler)]
    for name, spec, whole in [*quick, *((name, spec, False) for name, spec in more)]:
        with contextlib.suppress(*REFUSED):
            forwards.append(_recorded(subject, name, spec, whole))
    settings = {"attn": str(subject.attn), "dtype": subject.dtype_name}
    return Recording(
        name=subject.name,
        rows=rows,
        pad=filler,
        dtype=subject.dtype_name,
        forwards=tuple(forwards),
        weights=digests(subject.model),
        meta={**{key: str(value) for key, value in environment().items()}, **settings},
    )


def _recorded(subject: Subject, name: str, spec: ForwardSpec, whole: bool) -> RecordedForward:
    modules = {name: module for name, module in subject.model.named_modules() if name}
    shape = (len(spec.tokens), spec.length)
    logits_BTV, real_BT = subject.logits(spec), real_tokens(spec)
    outputs: ModuleOutputs = {}
    if whole:
        outputs = outputs_with_floors(modules, lambda: subject.passes.replay(spec), shape)
    if subject.settings.tp is None:
        outputs = {event: replace(each, width=0) for event, each in outputs.items()}
    return RecordedForward(
        name,
        logits_BTV.cpu(),
        torch.ones(shape, dtype=torch.bool) if real_BT is None else real_BT,
        subject.budget.value,
        outputs,
    )


def save(recording: Recording, path: Path) -> None:
    """Write a recording.

    Raises:
        OSError: the path cannot be written.
    """
    tensors = {f"weights/{name}": value for name, value in recording.weights.items()}
    ways = []
    for number, each in enumerate(recording.forwards):
        home = f"ways/{number}"
        tensors[f"{home}/logits"] = each.logits_BTV.contiguous()
        tensors[f"{home}/real"] = each.real_BT.contiguous()
        for place, output in enumerate(each.outputs.values()):
            tensors[f"{home}/prints/{place}"] = output.print_BTK.contiguous()
        events = [
            {"module": module, "side": side, "floor": output.floor}
            for (module, side), output in each.outputs.items()
        ]
        ways.append({"name": each.name, "budget": each.budget, "events": events})
    header = {
        "schema": SCHEMA,
        "name": recording.name,
        "rows": recording.rows,
        "pad": recording.pad,
        "dtype": recording.dtype,
        "meta": recording.meta,
        "ways": ways,
    }
    write_bytes(path, to_bytes(tensors, metadata={"attncheck": json.dumps(header)}))


def load(path: Path) -> Recording:
    """Read a recording.

    Raises:
        TargetError: no such file, or not a recording of this form.
    """
    if not path.is_file():
        raise TargetError(f"{path}: no such file")
    try:
        with safe_open(str(path), framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("attncheck", "{}"))
            names = file.keys()  # a file, not a dictionary: it cannot be iterated
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, ValueError) as error:
        raise TargetError(f"{path}: not a recording ({first_line(error)})") from error
    if header.get("schema") != SCHEMA:
        found = header.get("schema")
        raise TargetError(f"{path}: expected a recording of `{SCHEMA}`, got `{found}`")
    weights = (name.removeprefix("weights/") for name in tensors if name.startswith("weights/"))
    return Recording(
        name=header["name"],
        rows=tuple(tuple(row) for row in header["rows"]),
        pad=header["pad"],
        dtype=header["dtype"],
        forwards=tuple(_read(f"ways/{n}", way, tensors) for n, way in enumerate(header["ways"])),
        weights={name: tensors[f"weights/{name}"] for name in weights},
        meta=dict(header["meta"]),
    )


def _read(home: str, way: dict[str, Any], tensors: dict[str, Tensor]) -> RecordedForward:
    outputs = {
        (each["module"], each["side"]): ModuleOutput(
            tensors[f"{home}/prints/{place}"], each["floor"]
        )
        for place, each in enumerate(way["events"])
    }
    real_BT = tensors[f"{home}/real"].to(torch.bool)
    return RecordedForward(way["name"], tensors[f"{home}/logits"], real_BT, way["budget"], outputs)
