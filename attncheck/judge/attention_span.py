"""Which keys each query of each layer really reads, seen at the kernel or, where that is out of
reach, in the gradient.

Axes: B batch, H query heads, T query positions, S key positions, W hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.attention.call import weights_of
from attncheck.attention.layers import attention_modules, layer_index
from attncheck.core.errors import Unsupported
from attncheck.judge.config_spec import FULL, Reach
from attncheck.judge.layers import Attended, read_layers
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.hooks import hooked

PICKS = 6


@final
@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one layer read in one call: reads_TS for the queries at `positions`, its last column
    being position `stop` - 1.

    `alike` says that all heads read the same keys, `masked` that the kernel was handed a mask;
    `how` is "kernel" or "gradient".
    """

    name: str
    index: int | None
    module: nn.Module
    reads_TS: Tensor
    positions: tuple[int, ...]
    stop: int
    alike: bool
    masked: bool
    how: str


def seen_at_kernel(subject: Subject, spec: ForwardSpec) -> list[Seen]:
    """Every layer's reach in every call of a pass, from the kernel fed with identity values and
    blank queries.

    Raises:
        Unsupported: the kernel is out of reach, or the model cannot be asked this way.
    """
    found: list[tuple[Attended, Tensor]] = []

    def reader(layer: Attended) -> None:
        reads_HTS = weights_of(layer.call, blank=True).detach().amax(0) > 0
        found.append((_light(layer), reads_HTS))

    read_layers(subject, spec, reader)
    return list(_placed(found, spec.chunks or (spec.length,)))


def _light(layer: Attended) -> Attended:
    return Attended(
        name=layer.name,
        index=layer.index,
        call=layer.call,
        context_BTHD=layer.context_BTHD[:0],
        stages={},
        tables=None,
    )


def _placed(found: list[tuple[Attended, Tensor]], chunks: tuple[int, ...]) -> Iterator[Seen]:
    """Give each call its absolute positions: the n-th call of a layer belongs to the n-th chunk.

    Calls whose first one was not over a prefill's own tokens (attention to an encoder, over the
    layers' depth) are left out.
    """
    counts: dict[str, int] = {}
    own: dict[str, bool] = {}
    for layer, reads_HTS in found:
        number = counts.get(layer.name, 0)
        counts[layer.name] = number + 1
        if number >= len(chunks) or not own.setdefault(
            layer.name, reads_HTS.shape[1:] == (chunks[0], chunks[0])
        ):
            continue
        start, stop = sum(chunks[:number]), sum(chunks[: number + 1])
        if reads_HTS.shape[1] != chunks[number] or reads_HTS.shape[2] > stop:
            continue
        yield Seen(
            name=layer.name,
            index=layer.index,
            module=layer.call.module,
            reads_TS=reads_HTS.any(0),
            positions=tuple(range(start, stop)),
            stop=stop,
            alike=bool((reads_HTS.any(0) == reads_HTS.all(0)).all()),
            masked=layer.call.mask is not None,
            how="kernel",
        )


def seen_in_gradient(subject: Subject, spec: ForwardSpec) -> list[Seen]:
    """Every attention module's reach for a few queries: where the gradient of its output at a query
    is not zero.

    Raises:
        Unsupported: no attention module was found, or none takes hidden states and gives a
        gradient.
    """
    calls = _calls(subject, spec)
    found: list[Seen] = []
    for name, (module, args, named) in calls.items():
        with subject.numerics(), torch.enable_grad():
            found += _gradient(name, module, args, named, spec.length)
    if not found:
        raise Unsupported("no module with a query projection could be asked for its gradient")
    return found


def _calls(subject: Subject, spec: ForwardSpec) -> dict[str, tuple[nn.Module, Any, Any]]:
    calls: dict[str, tuple[nn.Module, Any, Any]] = {}
    handles = []
    for name, module in attention_modules(subject.model).items():

        def before(each: nn.Module, args: Any, named: Any, name: str = name) -> None:
            calls[name] = (each, args, named)

        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
    with hooked(handles):
        subject.passes.replay(spec)
    return calls


def _gradient(name: str, module: nn.Module, args: Any, named: Any, length: int) -> list[Seen]:
    values = [*args, *named.values()]
    hidden = next(
        (v for v in values if isinstance(v, Tensor) and v.is_floating_point() and v.ndim == 3), None
    )
    if hidden is None or hidden.shape[:2] != (1, length):
        return []
    leaf_BTW = hidden.detach().clone().requires_grad_()
    swapped = [leaf_BTW if value is hidden else value for value in values]
    try:
        output = module(
            *swapped[: len(args)], **dict(zip(named, swapped[len(args) :], strict=True))
        )
    except (RuntimeError, TypeError, ValueError):
        return []  # a module that cannot be called on its own (it fills a cache, or counts its calls)
    context_BTW = output[0] if isinstance(output, (tuple, list)) else output
    if (
        not isinstance(context_BTW, Tensor)
        or context_BTW.shape[:2] != (1, length)
        or not context_BTW.requires_grad
    ):
        return []
    queries = tuple(sorted({round(step * (length - 1) / (PICKS - 1)) for step in range(PICKS)}))
    rows = []
    for query in queries:
        (grad_BTW,) = torch.autograd.grad(context_BTW[0, query].sum(), leaf_BTW, retain_graph=True)
        rows.append(grad_BTW[0].abs().amax(-1) > 0)
    return [
        Seen(
            name=name,
            index=layer_index(module, name),
            module=module,
            reads_TS=torch.stack(rows),
            positions=queries,
            stop=length,
            alike=True,
            masked=False,
            how="gradient",
        )
    ]


def wrong_pairs(seen: Seen, reach: Reach) -> int:
    """Pairs read that should not be, and the other way round; keys that a cache has cut off count
    as not read.
    """
    allowed = reach.allowed_TS(seen.stop, seen.stop, seen.reads_TS.device)[list(seen.positions)]
    width = seen.reads_TS.shape[1]
    cut = allowed[:, : seen.stop - width]
    return int((allowed[:, seen.stop - width :] != seen.reads_TS).sum() + cut.sum())


def drawn(seen: Seen, reach: Reach) -> tuple[str, ...]:
    """Who reads whom, as `Measurement.reach` writes it: a text for each query, a character for each
    key.
    """
    allowed = reach.allowed_TS(seen.stop, seen.stop, seen.reads_TS.device)[list(seen.positions)]
    reads = torch.zeros_like(allowed)
    reads[:, seen.stop - seen.reads_TS.shape[1] :] = seen.reads_TS
    code = allowed.long() + 2 * reads.long()
    return tuple("".join(".-+#"[sign] for sign in row) for row in code.tolist())


def reads_ahead(seen: Seen) -> bool:
    """Whether any query reads a key after its own."""
    own = FULL.allowed_TS(seen.stop, seen.stop, seen.reads_TS.device)[list(seen.positions)]
    return bool((seen.reads_TS & ~own[:, seen.stop - seen.reads_TS.shape[1] :]).any())


def excuse(seen: Seen, others: list[Seen]) -> str:
    """Why a layer that reads something else is no fault: by head, by content, or because it says
    that it is not causal.

    `others` is what was seen of the same call with other tokens.
    """
    if reads_ahead(seen):
        declared = getattr(seen.module, "is_causal", True) is False and not seen.masked
        return f"{seen.name} declares that it is not causal" if declared else ""
    if not seen.alike:
        return f"{seen.name}: its heads read different keys"
    twin = [each for each in others if (each.name, each.stop) == (seen.name, seen.stop)]
    if any(
        each.reads_TS.shape != seen.reads_TS.shape or bool((each.reads_TS != seen.reads_TS).any())
        for each in twin
    ):
        return f"{seen.name} chooses its keys by content"
    return ""
