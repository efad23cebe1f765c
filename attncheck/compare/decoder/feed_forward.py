"""Compute linear maps and feed-forward blocks, plain and routed, in float64.

`Visit` is shown each value by name as it is computed, so that it can be looked for in another
model's forward.

Axes: B batch, T positions, C channels, E experts, K chosen experts, N groups, X experts of a group.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from attncheck.compare.decoder.spec import ExpertsSpec, MlpSpec, Projection, Visit

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "SiLU": F.silu,
    "exact GELU": F.gelu,
    "tanh GELU": lambda x: F.gelu(x, approximate="tanh"),
    "ReLU": F.relu,
    "sigmoid GELU": lambda x: x * torch.sigmoid(1.702 * x),
    "squared ReLU": lambda x: F.relu(x).square(),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "no activation": lambda x: x,
}


def unseen(name: str, value: Tensor) -> None:
    """A visit that keeps nothing."""


def projected(projection: Projection, x: Tensor) -> Tensor:
    """A linear map with its bias."""
    return F.linear(x, projection.weight, projection.bias)


def activated(name: str, x: Tensor) -> Tensor:
    """An activation by its name."""
    return ACTIVATIONS[name](x)


def mlp(spec: MlpSpec, x: Tensor, visit: Visit = unseen) -> Tensor:
    """The output of one feed-forward block."""
    if spec.opaque is not None:
        output = spec.opaque.run(x, spec.opaque.weights, visit)
        visit("output", output)
        return output
    up = projected(spec.up, x)
    visit("up", up)
    if spec.gate is None:
        inner = activated(spec.activation, up)
    else:
        gate = projected(spec.gate, x)
        visit("gate", gate)
        first, second = (gate, up) if spec.activated == "gate" else (up, gate)
        if spec.limit is not None:
            first, second = first.clamp(max=spec.limit), second.clamp(-spec.limit, spec.limit)
        inner = activated(spec.activation, first)
        visit("activated", inner)
        inner = inner * (activated(spec.up_activation, second) + spec.up_offset)
    visit("inner", inner)
    output = projected(spec.down, inner)
    visit("output", output)
    return output


def routed(spec: ExpertsSpec, x_BTC: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
    """The chosen experts of each token and their weights, K each."""
    scores_BTE = projected(spec.router, x_BTC)
    visit("router", scores_BTE)
    if spec.order == "top-k first":
        top = scores_BTE.topk(spec.count, -1)
        chosen_BTK, weights_BTK = top.indices, top.values.softmax(-1)
    else:
        first = spec.order == "softmax first"
        scores_BTE = scores_BTE.softmax(-1) if first else scores_BTE.sigmoid()
        choice_BTE = scores_BTE if spec.correction is None else scores_BTE + spec.correction
        chosen_BTK = _among_groups(spec, choice_BTE).topk(spec.count, -1).indices
        weights_BTK = (choice_BTE if spec.weighted else scores_BTE).gather(-1, chosen_BTK)
        if spec.normalised:
            weights_BTK = weights_BTK / weights_BTK.sum(-1, keepdim=True)
    weights_BTK = weights_BTK * spec.gain
    visit("router weights", weights_BTK)
    return chosen_BTK, weights_BTK


def _among_groups(spec: ExpertsSpec, choice_BTE: Tensor) -> Tensor:
    """Scores with those of groups that may not be chosen from left out."""
    if spec.groups == 1:
        return choice_BTE
    grouped_BTNX = choice_BTE.view(*choice_BTE.shape[:2], spec.groups, -1)
    sums_BTN = grouped_BTNX.topk(min(spec.best, grouped_BTNX.shape[-1]), -1).values.sum(-1)
    kept_BTN = torch.zeros_like(sums_BTN, dtype=torch.bool)
    kept_BTN.scatter_(-1, sums_BTN.topk(spec.kept, -1).indices, True)
    return grouped_BTNX.masked_fill(~kept_BTN[..., None], spec.left_out).flatten(-2)


def experts(spec: ExpertsSpec, x_BTC: Tensor, visit: Visit = unseen) -> Tensor:
    """The weighted sum of the chosen experts' outputs, and what the shared expert adds."""
    chosen_BTK, weights_BTK = routed(spec, x_BTC, visit)
    total_BTC = torch.zeros_like(x_BTC)
    for number, expert in enumerate(spec.experts):
        weight_BT1 = torch.where(chosen_BTK == number, weights_BTK, 0.0).sum(-1, keepdim=True)
        if spec.on_input:
            used_BT1 = (chosen_BTK == number).any(-1, keepdim=True)
            total_BTC += mlp(expert, x_BTC * weight_BT1) * used_BT1
        else:
            total_BTC += mlp(expert, x_BTC) * weight_BT1
    if spec.shared is not None:
        visit("routed", total_BTC)
        shared_BTC = mlp(spec.shared, x_BTC)
        if spec.shared_gate is not None:
            shared_BTC = shared_BTC * projected(spec.shared_gate, x_BTC).sigmoid()
        visit("shared", shared_BTC)
        total_BTC = total_BTC + shared_BTC
    visit("output", total_BTC)
    return total_BTC


def feed_forward(spec: MlpSpec | ExpertsSpec, x: Tensor, visit: Visit = unseen) -> Tensor:
    """A plain block or routed ones."""
    return mlp(spec, x, visit) if isinstance(spec, MlpSpec) else experts(spec, x, visit)
