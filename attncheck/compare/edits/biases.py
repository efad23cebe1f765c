"""Linear biases on scores (ALiBi): missing, turned round, or with other slopes.

Axes: B batch, H heads, T positions, S keys.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attncheck.compare.decoder.compute import behind
from attncheck.compare.decoder.spec import AttentionSpec
from attncheck.compare.edits.attention import edit
from attncheck.compare.edits.edit import Edit

LEAST_WEIGHT = 1e-12


def bias_edits(spec: AttentionSpec) -> Iterator[Edit]:
    """The slopes of a layer that has some, left out and turned round."""
    if spec.slopes is None:
        return
    fix = "adding the biases"
    yield edit(spec, "alibi-missing", "no linear biases on scores", fix=fix, slopes=None)
    got = "linear biases of the other sign: far keys get more"
    yield edit(spec, "alibi-sign", got, fix="turning their sign", slopes=-spec.slopes)


def measured_slopes(
    spec: AttentionSpec, raw_BHTS: Tensor, weights_BHTS: Tensor, slack: float
) -> Iterator[Edit]:
    """The slopes with which log weights = scale * scores - slope * distance + a number."""
    both = weights_BHTS > LEAST_WEIGHT
    rest = weights_BHTS.clamp_min(1e-300).log() - spec.scale * raw_BHTS
    away = behind(raw_BHTS.shape[-1]).double().expand_as(rest)
    rest, away = centred(rest, both), centred(away, both)
    slopes_H = -(rest * away).sum((0, 2, 3)) / away.square().sum((0, 2, 3))
    left = float((rest + slopes_H[:, None, None] * away).abs().max())
    own_H = torch.zeros_like(slopes_H) if spec.slopes is None else spec.slopes
    apart = float((slopes_H - own_H).abs().max())
    turned = float((slopes_H + own_H).abs().max()) <= 1e-6
    if left > 1e4 * slack * float(rest.abs().max()) or apart <= 1e-6 or turned:
        return
    name = "alibi-unexpected" if spec.slopes is None else "alibi-slopes"
    want = "none" if spec.slopes is None else _listed(own_H)
    got = f"linear biases on scores with the slopes {_listed(slopes_H)}"
    ratio_H = slopes_H / own_H.clamp_min(1e-300)
    if spec.slopes is not None and float((ratio_H / ratio_H[0] - 1).abs().max()) < 1e-5:
        got, want = f"linear biases on scores times {float(ratio_H[0]):.6g}", ""
    yield edit(spec, name, got, want, fix="putting the slopes right", slopes=slopes_H)


def _listed(slopes_H: Tensor) -> str:
    few = ", ".join(f"{each:.4g}" for each in slopes_H[:4].tolist())
    return few + (", ..." if len(slopes_H) > 4 else "")


def centred(values_BHTS: Tensor, both: Tensor) -> Tensor:
    """Values less the mean of each query over the keys that it reads; zeros elsewhere."""
    values = torch.where(both, values_BHTS, 0.0)
    mean = values.sum(-1, keepdim=True) / both.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(both, values - mean, 0.0)
