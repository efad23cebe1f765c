"""Read a decoder from a model by effect: what flows from where to where decides, and no name does.

Every part that is read is computed again from its own inputs; one that does not come out is not
guessed.

Axes: B batch, T positions, S keys, H query heads, G key/value heads, D head width, C channels.
"""

from __future__ import annotations

import contextlib
from itertools import pairwise

from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.attention.layers import layer_lists
from attncheck.compare.decoder import compute
from attncheck.compare.decoder.fit_experts import feed_forward_of
from attncheck.compare.decoder.fits import mlp_between, norm_of
from attncheck.compare.decoder.observed import Observed, Unreadable, equal, observe
from attncheck.compare.decoder.opaque import opaque_part, unread_attention, unread_block
from attncheck.compare.decoder.reading_attention import attention_of
from attncheck.compare.decoder.reading_outer import (
    embedding_of,
    head_name,
    head_of,
    head_transform,
    output_table,
)
from attncheck.compare.decoder.reading_summed import summed_layer
from attncheck.compare.decoder.schemes import with_scheme
from attncheck.compare.decoder.spec import (
    AttentionSpec,
    DecoderSpec,
    ExpertsSpec,
    LayerSpec,
    MlpSpec,
    NormSpec,
)
from attncheck.model.compat import text_config
from attncheck.model.embeddings import token_table
from attncheck.model.inputs import Tokens
from attncheck.model.subject import Subject

WEIGHTY = 2
"""A block holds matrices; a norm holds vectors only."""


def read_decoder(subject: Subject, rows: Tokens) -> tuple[DecoderSpec, Observed]:
    """The decoder that a subject at float64 is, which gives its logits on these rows.

    Raises:
        Unsupported: some part of it cannot be written out.
    """
    observed = observe(subject, rows)
    members = _layers(observed)
    layers = tuple(_layer(observed, name, number) for number, name in enumerate(members))
    spec = _around(observed, members, layers)
    if not equal(compute.logits(spec, observed.ids_BT), observed.logits_BTV, 1e-7):
        raise Unreadable("the decoder as read does not give the model's own logits")
    return spec, observed


def _layers(observed: Observed) -> list[str]:
    """The names of the layers, in order: the longest list of modules of which each gets what the
    one before it gives.
    """
    found: list[str] = []
    for members in layer_lists(observed.model):
        names = [observed.names[id(each)] for each in members]
        if len(names) > len(found) and all(name in observed.inputs for name in names):
            pairs = pairwise(names)
            if all(equal(observed.outputs[a], observed.inputs[b]) for a, b in pairs):
                found = names
    if not found:
        raise Unreadable("its layers do not stand in a list in which one follows the other")
    return found


def _blocks(observed: Observed, layer: str, attention: str) -> list[str]:
    """Feed-forward blocks: children of the layer with matrices, the attention left out."""
    own = observed.module(layer)
    found = []
    for name, child in own.named_children():
        path = f"{layer}.{name}"
        if attention == path or attention.startswith(f"{path}.") or path not in observed.outputs:
            continue
        if any(each.ndim >= WEIGHTY for each in child.parameters()):
            found.append(path)
    return found


def _layer(observed: Observed, name: str, number: int) -> LayerSpec:
    """One layer; where it cannot be written out, the reference's own module."""
    calls = [c for c in observed.calls if observed.names[id(c.module)].startswith(f"{name}.")]
    for read in (_written, summed_layer) if len(calls) == 1 else ():
        with contextlib.suppress(Unreadable, RuntimeError):
            return read(observed, calls[0], name, number)
        # tensors of other shapes than they are taken for do not fit together
    return LayerSpec(
        attention=unread_attention(None, ""),
        mlp=unread_block(None, ""),
        opaque=opaque_part(observed, name),
        module=name,
    )


def _without_residual(observed: Observed, name: str, base: Tensor) -> None:
    """A block that adds its output to the residual itself counts as one that does not."""
    for each in observed.linears(name):
        alone = observed.outputs[each]
        if alone.shape == base.shape and equal(alone + base, observed.outputs[name]):
            observed.outputs[name] = alone
            return


def _attention(observed: Observed, call: AttentionCall, number: int, name: str) -> AttentionSpec:
    try:
        found = attention_of(observed, call, number, name)
    except Unreadable:
        return unread_attention(opaque_part(observed, name), name)
    return with_scheme(found, text_config(getattr(observed.model, "config", None)), number)


def _feed_forward(observed: Observed, first: str, last: str) -> MlpSpec | ExpertsSpec:
    if first != last:
        return mlp_between(observed, first, last)
    try:
        return feed_forward_of(observed, first)
    except Unreadable:
        return unread_block(opaque_part(observed, first), first)


def _written(observed: Observed, call: AttentionCall, name: str, number: int) -> LayerSpec:
    attention = observed.names[id(call.module)]
    x, out = observed.inputs[name], observed.outputs[name]
    blocks = _blocks(observed, name, attention)
    if len(blocks) not in (1, 2):
        raise Unreadable(f"{name} has {len(blocks)} feed-forward blocks")
    block, last = blocks[0], blocks[-1]
    _without_residual(observed, attention, x)
    inside = (f"{attention}.", f"{block}.")
    others = [each for each in observed.within(name) if not each.startswith(inside)]
    norms = {each: found for each in others if (found := norm_of(observed, each)) is not None}

    def before(path: str) -> NormSpec | None:
        given = observed.giving(observed.inputs[path], list(norms))
        return norms[given] if given else None

    def after(path: str) -> NormSpec | None:
        value = observed.outputs[path]
        return next((n for each, n in norms.items() if equal(observed.inputs[each], value)), None)

    first_in, second_in = before(attention), before(block)
    middle = observed.inputs[second_in.module if second_in else block].reshape(x.shape)
    _without_residual(observed, block, middle)
    first = compute.normed(after(attention), observed.outputs[attention])
    second = compute.normed(after(last), observed.outputs[last]).reshape(x.shape)
    parallel = equal(middle, x) and not equal(out - second, middle)
    total = first + second if parallel else second
    base = x if parallel else middle
    gain = float(((out - base) * total).sum() / total.square().sum())
    layer = LayerSpec(
        attention=_attention(observed, call, number, attention),
        mlp=_feed_forward(observed, block, last),
        before_attention=first_in,
        after_attention=after(attention),
        before_mlp=second_in,
        after_mlp=after(last),
        parallel=parallel,
        gain=1.0 if abs(gain - 1) < 1e-9 else gain,
        module=name,
    )
    if not equal(compute.layer(layer, x), out, 1e-7):
        raise Unreadable(f"{name} does not add its blocks up in a known way")
    return layer


def _around(observed: Observed, members: list[str], layers: tuple[LayerSpec, ...]) -> DecoderSpec:
    """The embedding before the layers, and the norm and head behind them."""
    first, last = observed.inputs[members[0]], observed.outputs[members[-1]]
    outside = [
        each
        for each in observed.outputs
        if not any(each == name or each.startswith(f"{name}.") for name in members)
    ]
    norms = {each: norm_of(observed, each) for each in outside}
    final = next((n for e, n in norms.items() if n and equal(observed.inputs[e], last)), None)
    table = token_table(observed.model)
    table_module = observed.names.get(id(table), "")
    embedding_norm = None
    given = observed.giving(first, [each for each, norm in norms.items() if norm])
    if given is not None:
        embedding_norm, first = norms[given], observed.inputs[given]
    weight_VC = table.weight.detach().double()
    hidden = compute.normed(final, last)
    head_map, activation = None, "no activation"
    if final is None:
        head_map, activation, final = head_transform(observed, outside, norms, last)
        hidden = last if head_map is None else observed.inputs[head_name(observed)]
    head, logit_scale, cap = head_of(observed, hidden)
    return DecoderSpec(
        table=weight_VC,
        layers=layers,
        head=head,
        **embedding_of(observed, weight_VC, first),
        embedding_norm=embedding_norm,
        head_map=head_map,
        head_activation=activation,
        final_norm=final,
        cap=cap,
        logit_scale=logit_scale,
        tied=output_table(observed).weight is table.weight,
        embedding_module=table_module,
    )
