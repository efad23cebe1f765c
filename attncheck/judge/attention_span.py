"""Which keys each query of each layer really reads: observed at the kernel or, where no attention
can be recorded, in the gradient.

Axes: B batch, H query heads, T query positions, S key positions, W hidden width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from attncheck.attention.layers import attention_modules, layer_index
from attncheck.core.errors import Unsupported
from attncheck.judge.config_spec import FULL, AttentionSpan
from attncheck.judge.layer_calls import LayerCall, read_layers
from attncheck.judge.layer_spec import readable_keys
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.hooks import hooked

PICKS = 6
ROUNDINGS = 64
"""Gradients this many units in the last place of the largest one are rounding."""
ModuleCall = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


@final
@dataclass(frozen=True, kw_only=True)
class ObservedKeys:
    """What one layer read in one call: reads_TS of any head for the queries at `positions`, its
    last column being position `stop` - 1.

    reads_HTS is the same for each head, where it could be seen. What is marked in unsure_TS is no
    more than rounding: such a key is as the config states. `masked` says that the kernel got a
    mask.
    """

    name: str
    index: int | None
    module: nn.Module
    reads_TS: Tensor
    positions: tuple[int, ...]
    stop: int
    reads_HTS: Tensor | None = None
    unsure_TS: Tensor | None = None
    masked: bool = False
    how: Literal["kernel", "gradient"] = "kernel"

    def allowed_TS(self, span: AttentionSpan) -> Tensor:
        """The keys up to `stop` that a span allows to these queries."""
        square = span.allowed_TS(self.stop, self.stop, self.reads_TS.device)
        return square[list(self.positions)]

    @property
    def cut(self) -> int:
        """How many of the oldest keys a cache no longer holds."""
        return self.stop - self.reads_TS.shape[1]

    def worst_head(self, span: AttentionSpan) -> tuple[ObservedKeys, int | None]:
        """What the head reads that departs most from a span, and its number: None where all heads
        read the same or could not be told apart.
        """
        if self.reads_HTS is None or bool((self.reads_HTS == self.reads_TS).all()):
            return self, None
        wrong_H = (self.reads_HTS != self.allowed_TS(span)[:, self.cut :]).sum((1, 2))
        head = int(wrong_H.argmax())
        return replace(self, reads_TS=self.reads_HTS[head], reads_HTS=None), head


def observed_keys(layer: LayerCall, positions: Sequence[int]) -> ObservedKeys:
    """What the kernel of one call reads, for queries at these positions."""
    stop = positions[-1] + 1
    # a buffer may go on with empty slots
    reads_HTS = readable_keys(layer).detach().any(0)[..., :stop]
    return ObservedKeys(
        name=layer.name,
        index=layer.index,
        module=layer.call.module,
        reads_TS=reads_HTS.any(0),
        reads_HTS=reads_HTS,
        positions=tuple(positions),
        stop=stop,
        masked=layer.call.mask is not None,
    )


def observed_at_kernel(subject: Subject, spec: ForwardSpec) -> list[ObservedKeys]:
    """What every layer reads in every call of a pass, from the kernel with identity values and zero
    queries. The n-th call of a layer belongs to the n-th chunk.

    Layers whose first call was not over the chunk's own tokens (attention to an encoder, or over
    the depth) are left out.

    Raises:
        Unsupported: the model runs no attention that can be recorded, or cannot take this pass.
    """
    chunks = spec.chunks or (spec.length,)
    found: list[ObservedKeys] = []
    counts: Counter[str] = Counter()
    own: dict[str, bool] = {}

    def reader(layer: LayerCall) -> None:
        number, total = counts[layer.name], layer.call.key_BGSD.shape[2]
        counts[layer.name] += 1
        if number >= len(chunks) or not own.setdefault(layer.name, layer.over(chunks[0])):
            return
        start, stop = sum(chunks[:number]), sum(chunks[: number + 1])
        if layer.call.query_BHTD.shape[2] == chunks[number] and total <= stop:
            found.append(observed_keys(layer, range(start, stop)))

    read_layers(subject, spec, reader)
    return found


def observed_in_gradient(subject: Subject, spec: ForwardSpec) -> list[ObservedKeys]:
    """What every attention module reads for a few queries: where the gradient of its output at a
    query is not zero.

    Raises:
        Unsupported: no attention module was found, or none takes hidden states and gives a
            gradient.
    """
    found: list[ObservedKeys] = []
    for name, call in _module_calls(subject, spec).items():
        with subject.numerics(), torch.enable_grad():
            found += _in_gradient(name, call, spec.length)
    if not found:
        raise Unsupported("no module with a query projection returned a gradient")
    return found


def _module_calls(subject: Subject, spec: ForwardSpec) -> dict[str, ModuleCall]:
    modules = attention_modules(subject.model)
    names = {module: name for name, module in modules.items()}
    calls: dict[str, ModuleCall] = {}

    def before(module: nn.Module, args: Any, named: Any) -> None:
        calls[names[module]] = (module, args, named)

    with hooked(each.register_forward_pre_hook(before, with_kwargs=True) for each in names):
        subject.passes.replay(spec)
    return calls


def _in_gradient(name: str, call: ModuleCall, length: int) -> Iterator[ObservedKeys]:
    module, args, named = call
    leaf_BTW, context_BTW = _called_on_leaf(module, args, named, length)
    if context_BTW is None:
        return
    queries = tuple(sorted({round(step * (length - 1) / (PICKS - 1)) for step in range(PICKS)}))
    rows, unsure = [], []
    for query in queries:
        (grad_BTW,) = torch.autograd.grad(context_BTW[0, query].sum(), leaf_BTW, retain_graph=True)
        size_S = grad_BTW[0].abs().amax(-1)
        # a hidden key has a weight of exactly 0 and so an exact zero for a gradient, unless a
        # maximum or a sum over all keys was divided out again
        rows.append(size_S > 0)
        unsure.append(
            rows[-1] & (size_S < ROUNDINGS * torch.finfo(size_S.dtype).eps * size_S.max())
        )
    yield ObservedKeys(
        name=name,
        index=layer_index(module, name),
        module=module,
        reads_TS=torch.stack(rows),
        unsure_TS=torch.stack(unsure),
        positions=queries,
        stop=length,
        how="gradient",
    )


def _called_on_leaf(
    module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], length: int
) -> tuple[Tensor, Tensor | None]:
    """The hidden states of a module's call as a leaf, and its output on them: None where it has no
    gradient of the right shape.
    """

    def fits(value: Any) -> bool:
        return isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point()

    hidden = next(filter(fits, (*args, *named.values())), torch.zeros(0))
    leaf_BTW = hidden.detach().clone().requires_grad_()
    if hidden.shape[:2] != (1, length):
        return leaf_BTW, None
    changed = [leaf_BTW if value is hidden else value for value in args]
    changed_named = {key: leaf_BTW if value is hidden else value for key, value in named.items()}
    try:
        output = module(*changed, **changed_named)
    except (RuntimeError, TypeError, ValueError):
        return leaf_BTW, None  # it cannot be called alone: it fills a cache, or counts its calls
    context = output[0] if isinstance(output, (tuple, list)) else output
    shaped = isinstance(context, Tensor) and context.shape[:2] == (1, length)
    return leaf_BTW, context if shaped and context.requires_grad else None


def wrong_pairs(observed: ObservedKeys, span: AttentionSpan) -> int:
    """(query, key) pairs that are read and not allowed, or allowed and not read, of the head that
    has most of them; keys that a cache no longer holds count as not read.
    """
    shown, _ = observed.worst_head(span)
    return int(wrong_TS(shown, span).sum())


def wrong_TS(observed: ObservedKeys, span: AttentionSpan) -> Tensor:
    """(T, S) booleans: the pairs that are read and not allowed, or allowed and not read."""
    wrong = _whole(observed) != observed.allowed_TS(span)
    return wrong if observed.unsure_TS is None else wrong & ~observed.unsure_TS


def _whole(observed: ObservedKeys) -> Tensor:
    """reads_TS over all keys up to `stop`."""
    return torch.nn.functional.pad(observed.reads_TS, (observed.cut, 0))


def drawn(observed: ObservedKeys, span: AttentionSpan) -> tuple[str, ...]:
    """The keys that each query reads, as `AtMost.visible` draws them."""
    return signs(_whole(observed), observed.allowed_TS(span))


def signs(reads_TS: Tensor, allowed_TS: Tensor) -> tuple[str, ...]:
    """A string for each query, a character for each key: `#` read as specified, `+` read but not
    specified, `-` specified but not read, `.` neither.
    """
    codes = (allowed_TS.long() + 2 * reads_TS.long()).tolist()
    return tuple("".join(".-+#"[code] for code in row) for row in codes)


def reads_ahead(observed: ObservedKeys) -> bool:
    """Whether any query reads a key after its own."""
    later = wrong_TS(observed, FULL)[:, observed.cut :]
    return bool((observed.reads_TS & later).any())


def exemption(observed: ObservedKeys, others: list[ObservedKeys]) -> str:
    """Why a layer that reads other keys than its config states has no fault: it chooses keys by
    content, as `others` show, which was observed in the same call with other tokens.
    """
    if reads_ahead(observed):
        return ""
    twins = [each for each in others if (each.name, each.stop) == (observed.name, observed.stop)]
    if all(torch.equal(_by_head(each), _by_head(observed)) for each in twins):
        return ""
    return f"{observed.name} chooses its keys by content"


def _by_head(observed: ObservedKeys) -> Tensor:
    return observed.reads_TS if observed.reads_HTS is None else observed.reads_HTS


def other_keys(stated: Tensor, observed: Tensor) -> str:
    """Which heads read other keys, where not all of them do; both (B, H, T, S)."""
    wrong_H = (observed != stated.expand(observed.shape)).any(0).flatten(1).any(1)
    heads = wrong_H.nonzero().flatten().tolist()
    if len(heads) in (0, len(wrong_H)):
        return "it reads other keys than its config states"
    named = "its head" if len(heads) == 1 else "its heads"
    return f"{named} {' '.join(map(str, heads))} reads other keys than its config states"
