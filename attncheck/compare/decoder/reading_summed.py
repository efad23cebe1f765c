"""A layer whose norms stand after its sums, as encoders of BERT's kind have them, read by effect.

Axes: B batch, T positions, C channels.
"""

from __future__ import annotations

from itertools import product

from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.compare.decoder import compute
from attncheck.compare.decoder.fits import mlp_between, norm_of
from attncheck.compare.decoder.observed import Observed, Unreadable, equal
from attncheck.compare.decoder.reading_attention import attention_of
from attncheck.compare.decoder.spec import LayerSpec


def summed_layer(observed: Observed, call: AttentionCall, name: str, number: int) -> LayerSpec:
    """`norm(middle + block(middle))` with `middle = norm(x + attention(x))`.

    Raises:
        Unreadable: the layer adds its blocks up in another way.
    """
    x, out = observed.inputs[name], observed.outputs[name]
    linears = observed.linears(name)
    norms = {n: each for n in observed.within(name) if (each := norm_of(observed, n)) is not None}
    last = observed.giving(out, list(norms))
    for first, output in product(norms, linears):
        if last is None or first == last:
            continue
        if not _adds(observed.outputs[output], x, observed.inputs[first]):
            continue
        middle = observed.outputs[first]
        ups = [each for each in linears if equal(observed.inputs[each], middle)]
        total = observed.inputs[last]
        downs = [each for each in linears if _adds(observed.outputs[each], middle, total)]
        for up, down in product(ups, downs):
            layer = LayerSpec(
                attention=attention_of(
                    observed, call, number, observed.names[id(call.module)], output
                ),
                mlp=mlp_between(observed, up, down),
                before_attention=norms[first],
                before_mlp=norms[last],
                sum_norms=True,
                module=name,
            )
            if equal(compute.layer(layer, x), out, 1e-7):
                return layer
    raise Unreadable(f"{name} does not norm the sums of its blocks")


def _adds(left: Tensor, right: Tensor, total: Tensor) -> bool:
    return left.shape == right.shape and equal(left + right, total)
