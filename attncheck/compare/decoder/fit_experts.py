"""Routed feed-forward blocks found by trying: which experts a token goes to, with what weights.

Axes: B batch, T positions, C channels, E experts, I inner channels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.compare.decoder import feed_forward
from attncheck.compare.decoder.fits import mlp_of
from attncheck.compare.decoder.observed import Observed, Unreadable, equal
from attncheck.compare.decoder.spec import ExpertsSpec, MlpSpec, Projection
from attncheck.model.compat import text_config

COUNTS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k", "moe_k")
GROUPS, KEPT = ("n_group", "num_expert_groups"), ("topk_group", "num_limited_groups")
ORDERS = ("softmax first", "top-k first", "sigmoid")
Stacks = tuple[Tensor, Tensor]
Fields = dict[str, Any]
Shared = tuple[MlpSpec | None, Projection | None, Tensor]


def feed_forward_of(observed: Observed, prefix: str) -> MlpSpec | ExpertsSpec:
    """The feed-forward block that a module computes, plain or routed.

    Raises:
        Unreadable: it cannot be written out.
    """
    plain = mlp_of(observed, prefix)
    return _experts_of(observed, prefix) if plain is None else plain


def _experts_of(observed: Observed, prefix: str) -> ExpertsSpec:
    module, x, y = observed.module(prefix), observed.inputs[prefix], observed.outputs[prefix]
    stacks = {name: each.detach().double() for name, each in module.named_parameters()}
    routers = list(_routers(stacks))
    fused = [each for each in stacks.values() if each.ndim == 3]
    for shared, gate, added in _shared(observed, prefix, x):
        for router, pair in itertools.product(routers, _stacks(fused, x.shape[-1])):
            if router.weight.shape != (len(pair[1]), x.shape[-1]):
                continue
            router = replace(router, module=prefix)
            biases = _biases_of(stacks, pair)
            for blocks in _all_blocks(observed, pair, biases, prefix):
                for found in _routings(observed, prefix, router, blocks, y - added):
                    whole = replace(found, shared=shared, shared_gate=gate)
                    if equal(feed_forward.experts(whole, x), y):
                        return whole
    raise Unreadable(f"{prefix} routes tokens in a way that cannot be written out")


def _routers(stacks: dict[str, Tensor]) -> Iterator[Projection]:
    """Every matrix that may be the router, with the bias that stands beside it."""
    for name, each in stacks.items():
        bias = stacks.get(name.removesuffix("weight") + "bias") if name.endswith("weight") else None
        if each.ndim == 2:
            yield Projection(weight=each, bias=bias)


def _biases_of(stacks: dict[str, Tensor], pair: Stacks) -> tuple[Tensor | None, Tensor | None]:
    """The biases of experts, (E, 2I) and (E, C)."""
    shapes = [each.shape[:2] for each in pair]
    named = [each for name, each in stacks.items() if name.endswith("bias")]
    found = [next((each for each in named if each.shape == shape), None) for shape in shapes]
    return found[0], found[1]


def _shared(observed: Observed, prefix: str, x: Tensor) -> Iterator[Shared]:
    """Blocks inside this one that run for every token, and what each adds."""
    yield None, None, torch.zeros_like(x)
    names = [name for name, child in observed.module(prefix).named_children()]
    gates = [g for n in names if (g := _gate(observed, f"{prefix}.{n}")) is not None]
    for path in (f"{prefix}.{name}" for name in names):
        if path not in observed.outputs or not _same_size(observed.inputs.get(path), x):
            continue
        try:
            block = mlp_of(observed, path)
        except Unreadable:
            continue
        if block is not None:
            added = observed.outputs[path].view(x.shape)
            yield block, None, added
            for gate in gates:
                yield block, gate, added * feed_forward.projected(gate, x).sigmoid()


def _gate(observed: Observed, path: str) -> Projection | None:
    found = observed.linear(path) if path in observed.outputs else None
    return found if found is not None and len(found.weight) == 1 else None


def _same_size(given: Tensor | None, x: Tensor) -> bool:
    return given is not None and given.numel() == x.numel()


def _stacks(stacks: list[Tensor], width: int) -> Iterator[Stacks]:
    """Pairs of a fused (E, 2I, C) and a down (E, C, I) stack, each possibly stored transposed."""
    for first, second in itertools.permutations(stacks, 2):
        turned = [first, first.transpose(1, 2)]
        for gate_up in turned:
            for down in (second, second.transpose(1, 2)):
                fits = gate_up.shape[2] == width == down.shape[1]
                if fits and gate_up.shape[1] == 2 * down.shape[2]:
                    yield gate_up, down


def _routings(
    observed: Observed, prefix: str, router: Projection, blocks: tuple[MlpSpec, ...], y: Tensor
) -> Iterator[ExpertsSpec]:
    """Routings whose sum of experts is y up to a factor, which is put in."""
    x = observed.inputs[prefix]
    outputs_EBTC = torch.stack([feed_forward.mlp(each, x) for each in blocks])
    for form in _forms(observed, prefix, len(blocks)):
        found = ExpertsSpec(router=router, experts=blocks, module=prefix, **form)
        chosen_BTK, weights_BTK = feed_forward.routed(found, x, feed_forward.unseen)
        weights_BTE = torch.zeros(*x.shape[:2], len(blocks), dtype=x.dtype)
        weights_BTE.scatter_(-1, chosen_BTK, weights_BTK)
        total = torch.einsum("bte,ebtc->btc", weights_BTE, outputs_EBTC)
        gain = float((total * y).sum() / total.square().sum().clamp_min(1e-300))
        if equal(gain * total, y):
            yield replace(found, gain=1.0 if abs(gain - 1) < 1e-9 else gain)


def _all_blocks(
    observed: Observed, pair: Stacks, biases: tuple[Tensor | None, Tensor | None], prefix: str
) -> Iterator[tuple[MlpSpec, ...]]:
    """The experts under every activation and order of gate and up: halves, or in turn; with biases
    also a limit that the config states and an offset of one.
    """
    inner = pair[1].shape[2]
    rows = torch.arange(2 * inner)
    orders = [(rows[:inner], rows[inner:]), (rows[::2], rows[1::2])]
    orders += [(up, gate) for gate, up in orders]
    plain: Fields = {}
    forms = [plain]
    if biases[0] is not None:
        limits = [each for each in _limits(observed) if each] + [None]
        forms += [{"limit": each, "up_offset": one} for each in limits for one in (1.0, 0.0)]
    names = ("SiLU", "exact GELU", "tanh GELU", "sigmoid GELU")
    for form, activation, (gate, up) in itertools.product(forms, names, orders):
        yield tuple(
            MlpSpec(
                gate=_rows(pair[0][each], biases[0], each, gate, prefix),
                up=_rows(pair[0][each], biases[0], each, up, prefix),
                down=_rows(pair[1][each], biases[1], each, slice(None), prefix),
                activation=activation,
                module=prefix,
                **form,
            )
            for each in range(len(pair[1]))
        )


def _rows(
    weight_RC: Tensor, biases_ER: Tensor | None, expert: int, rows: Any, prefix: str
) -> Projection:
    bias = None if biases_ER is None else biases_ER[expert][rows]
    return Projection(weight=weight_RC[rows], bias=bias, module=prefix)


def _limits(observed: Observed) -> list[float]:
    """Numbers that the config calls a limit."""
    config = text_config(getattr(observed.model, "config", None))
    values = vars(config) if config is not None else {}
    return [float(v) for name, v in values.items() if "limit" in name and isinstance(v, float)]


def _forms(observed: Observed, prefix: str, experts: int) -> Iterator[dict[str, Any]]:
    """Every way to choose and weigh experts."""
    config = text_config(getattr(observed.model, "config", None))
    counts = _stated(config, COUNTS) or list(range(1, experts + 1))
    groups, kept = (_stated(config, each) for each in (GROUPS, KEPT))
    limits: list[dict[str, int]] = [{}]
    if groups and kept and groups[0] > 1 and experts % groups[0] == 0:
        limits += [{"groups": groups[0], "kept": kept[0], "best": best} for best in (2, 1)]
    module = observed.module(prefix)
    named = (*module.named_buffers(), *module.named_parameters())
    vectors = [each.detach().cpu().double() for _, each in named if each.shape == (experts,)]
    crossed: Any = itertools.product(
        counts, ORDERS, (True, False), limits, (None, *vectors), (False, True)
    )
    for count, order, normalised, limit, correction, weighted in crossed:
        plain = not limit and correction is None
        if (order == "top-k first" and not plain) or (weighted and correction is None):
            continue
        yield {
            "count": count,
            "order": order,
            "normalised": normalised,
            "correction": correction,
            "weighted": weighted,
            **limit,
        }


def _stated(config: Any, names: tuple[str, ...]) -> list[int]:
    values = [getattr(config, name, None) for name in names]
    return [each for each in values if isinstance(each, int)]
