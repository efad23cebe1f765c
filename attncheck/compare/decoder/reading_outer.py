"""What stands around a decoder's layers, read by effect: the embedding before them and the head
behind them.

Axes: B batch, T positions, C channels, M positions of a table, V vocabulary.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from attncheck.compare.decoder import compute, feed_forward
from attncheck.compare.decoder.fits import cap_of
from attncheck.compare.decoder.observed import Observed, Unreadable, equal
from attncheck.compare.decoder.spec import NormSpec, Projection

Transform = tuple[Projection | None, str, NormSpec | None]
"""A map, its activation and the norm behind it."""


def embedding_of(observed: Observed, weight_VC: Tensor, first_BTC: Tensor) -> dict[str, Any]:
    """The scale, the table of positions with the offset into it, and the row that is added to all,
    as fields of a decoder.
    """
    found_BTC = weight_VC[observed.ids_BT]
    scale = float((first_BTC * found_BTC).sum() / found_BTC.square().sum())
    if equal(found_BTC * scale, first_BTC):
        return {"scale": 1.0 if abs(scale - 1) < 1e-9 else scale}
    positions = _positions(observed, (first_BTC - found_BTC)[0])
    if positions is not None:
        return positions
    for scale in (1.0, weight_VC.shape[-1] ** 0.5):
        added_BTC = first_BTC - scale * found_BTC
        if len(added_BTC) > 1 and equal(added_BTC[1:], added_BTC[:1].expand_as(added_BTC[1:])):
            return {"scale": scale, "positions": added_BTC[0]}
    raise Unreadable("its embedding is neither scaled nor a sum with a table of positions")


def _positions(observed: Observed, added_TC: Tensor) -> dict[str, Any] | None:
    """The table whose rows step as what is added to the tokens does, and the rest of it."""
    steps_TC = added_TC.diff(dim=0)
    for _, module in observed.model.named_modules():
        if not isinstance(module, nn.Embedding) or module.weight.shape[-1] != added_TC.shape[-1]:
            continue
        table_MC = module.weight.detach().double()
        steps_MC = table_MC.diff(dim=0)
        offset = int((steps_MC - steps_TC[0]).abs().amax(-1).argmin())
        if not equal(steps_MC[offset : offset + len(steps_TC)], steps_TC, 1e-6):
            continue
        rest_C = added_TC[0] - table_MC[offset]
        added = rest_C if float(rest_C.abs().max()) > 1e-6 * float(added_TC.abs().max()) else None
        return {"positions": table_MC, "position_offset": offset, "added": added}
    return None


def output_table(observed: Observed) -> Any:
    """The module of the head.

    Raises:
        Unreadable: the model does not name one.
    """
    getter = getattr(observed.model, "get_output_embeddings", None)
    found = getter() if callable(getter) else None
    if found is None:
        raise Unreadable("it names no output embeddings")
    return found


def head_of(observed: Observed, hidden_BTC: Tensor) -> tuple[Projection, float, float | None]:
    """The map to logits, the factor on it, and the cap."""
    module = output_table(observed)
    bias = getattr(module, "bias", None)
    head = Projection(
        weight=module.weight.detach().double(),
        bias=bias.detach().double() if isinstance(bias, Tensor) else None,
        module=observed.names.get(id(module), ""),
    )
    plain_BTV, want_BTV = feed_forward.projected(head, hidden_BTC), observed.logits_BTV
    if equal(plain_BTV, want_BTV, 1e-7):
        return head, 1.0, None
    scale = float((plain_BTV * want_BTV).sum() / plain_BTV.square().sum())
    if equal(plain_BTV * scale, want_BTV, 1e-7):
        return head, scale, None
    cap = cap_of(plain_BTV, want_BTV)
    if cap is None:
        raise Unreadable("its logits are no scaled or capped map of the last hidden states")
    return head, 1.0, cap


def head_name(observed: Observed) -> str:
    """The name of the head's module; empty where it has none."""
    return observed.names.get(id(output_table(observed)), "")


def head_transform(
    observed: Observed, outside: list[str], norms: dict[str, NormSpec | None], last_BTC: Tensor
) -> Transform:
    """The map, activation and norm between the last layer and the head, as masked language models
    have them; no map where the head reads the last layer itself.
    """
    want_BTC = observed.inputs.get(head_name(observed))
    for name in outside if want_BTC is not None else ():
        if name == head_name(observed) or not equal(observed.inputs.get(name), last_BTC):
            continue
        found = observed.linear(name)
        for activation in feed_forward.ACTIVATIONS if found is not None else ():
            inner_BTC = feed_forward.activated(activation, observed.outputs[name])
            for norm in (None, *norms.values()):
                weight = None if norm is None else norm.weight
                if weight is not None and len(weight) != inner_BTC.shape[-1]:
                    continue
                if equal(compute.normed(norm, inner_BTC), want_BTC):
                    return found, activation, norm
    return None, "no activation", None
