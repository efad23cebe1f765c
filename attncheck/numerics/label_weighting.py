"""What a wrong loss may have done with its labels: which label each position is trained on, and how
much it counts.

Every loss here is a sum over positions of a weight times the negative log-likelihood of a label.
So a wrong loss is recognized by its value, or by its derivative with respect to the logits.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from attncheck.numerics.losses import IGNORED

Kind = Literal["usual", "shift", "items", "weight"]
SHIFTS = {
    -1: "the loss of labels that are shifted the wrong way",
    0: "the loss of labels that are not shifted",
    1: "the loss of labels that are shifted once",
    2: "the loss of labels that are shifted twice",
}
NO_ITEMS = "the mean over its own labels (`num_items_in_batch` changes nothing)"


@final
@dataclass(frozen=True)
class Weighting:
    """The label of each position (-100 for none) and its weight, both (B, T)."""

    words: str
    kind: Kind
    targets_BT: Tensor
    weights_BT: Tensor
    shift: int = 1

    def value(self, logs_BTV: Tensor) -> float:
        """The loss from the logarithms of the probabilities."""
        likely_BT = logs_BTV.gather(-1, self.targets_BT.clamp_min(0)[..., None])[..., 0]
        return float(-(likely_BT * self.weights_BT)[self.targets_BT != IGNORED].sum())

    def derivative(self, logs_BTV: Tensor) -> Tensor:
        """The derivative of the loss with respect to each logit, (B, T, V)."""
        change_BTV = logs_BTV.exp()
        own_BT1 = self.targets_BT.clamp_min(0)[..., None]
        change_BTV.scatter_add_(-1, own_BT1, -torch.ones_like(change_BTV[..., :1]))
        weighted_BTV = change_BTV * self.weights_BT[..., None]
        return weighted_BTV.masked_fill((self.targets_BT == IGNORED)[..., None], 0.0)

    @property
    def total(self) -> float:
        """The sum of all weights: the loss is this many times a mean."""
        return float(self.weights_BT[self.targets_BT != IGNORED].sum())


def shifted(labels_BT: Tensor, shift: int) -> Tensor:
    """The label that each position is trained on, (B, T), with -100 where the row has ended."""
    targets_BT, length = labels_BT.roll(-shift, 1), labels_BT.shape[1]
    targets_BT[:, slice(length - shift, length) if shift >= 0 else slice(-shift)] = IGNORED
    return targets_BT


def usual(labels_BT: Tensor, own: int, items: int | None) -> Weighting:
    """The right loss: a mean over the labels that count, or their sum divided by `items`."""
    return _evenly("the cross entropy", shifted(labels_BT, own), items, "usual", own)


def _evenly(
    words: str, targets_BT: Tensor, divisor: float | None, kind: Kind = "weight", shift: int = 1
) -> Weighting:
    weight = 1.0 / (divisor or max(count_of(targets_BT), 1))
    return Weighting(
        words, kind, targets_BT, torch.full_like(targets_BT, weight, dtype=torch.float64), shift
    )


def count_of(targets_BT: Tensor) -> int:
    """How many labels count."""
    return int((targets_BT != IGNORED).sum())


def wrong(
    labels_BT: Tensor,
    own: int,
    items: int | None,
    fills: tuple[int, ...],
    visible_BT: Tensor | None = None,
) -> Iterator[Weighting]:
    """Wrong losses, the usual suspects first.

    `fills` are ids that -100 may have been replaced by; `visible_BT` is the 2D mask of the call.
    """
    for shift, words in SHIFTS.items():
        targets_BT = shifted(labels_BT, shift)
        if shift != own and count_of(targets_BT):
            yield _evenly(words, targets_BT, items, "shift", shift)
            if items:
                yield _evenly(f"{words}, and {NO_ITEMS}", targets_BT, None, "shift", shift)
    targets_BT = shifted(labels_BT, own)
    if items:
        yield _evenly(NO_ITEMS, targets_BT, None, "items")
        twice = float(items * count_of(targets_BT))
        yield _evenly("the mean, divided by `num_items_in_batch` as well", targets_BT, twice)
    yield from _divided(labels_BT, targets_BT, own, visible_BT)
    yield from _dropped(targets_BT, own, items)
    for fill in fills:
        counted_BT = targets_BT.masked_fill(targets_BT == IGNORED, fill)
        counted_BT[:, targets_BT.shape[1] - own :] = IGNORED
        words = f"the loss with labels of -100 that count as token {fill}"
        yield _evenly(words, counted_BT, items)
    if labels_BT.shape[0] > 1 and own:
        flat_BT = labels_BT.flatten().roll(-own).reshape(labels_BT.shape)
        flat_BT[-1, -own:] = IGNORED
        words = "the loss of labels that are shifted across the rows of the batch"
        yield _evenly(words, flat_BT, items)


def _divided(
    labels_BT: Tensor, targets_BT: Tensor, own: int, visible_BT: Tensor | None
) -> Iterator[Weighting]:
    rows, length = labels_BT.shape
    seen_BT = torch.ones_like(labels_BT) if visible_BT is None else visible_BT
    for words, divisor in {
        "the sum, which nothing divides": 1,
        "the sum divided by all positions": rows * length,
        "the sum divided by all positions that have a next one": rows * (length - own),
        "the sum divided by the number of labels before they are shifted": count_of(labels_BT),
        "the sum divided by the number of rows": rows,
        "the sum divided by the length of a row": length,
        "the sum divided by the tokens that the mask shows": int(seen_BT.sum()),
        "the sum divided by the tokens that the mask shows after the first": int(
            seen_BT[:, own:].sum()
        ),
    }.items():
        yield _evenly(words, targets_BT, float(divisor))
    counts_B1 = (targets_BT != IGNORED).sum(1, keepdim=True).double()
    # the mean of a row without labels is 0 / 0, and so is every mean that includes it
    nan_or_one = (counts_B1 / counts_B1).mean()
    words = "the mean of each row's mean, in which rows with few labels weigh too much"
    for weights_B1 in (
        nan_or_one / (rows * counts_B1),
        1.0 / (counts_B1.clamp_min(1) * int((counts_B1 > 0).sum())),
    ):
        yield Weighting(words, "weight", targets_BT, weights_B1.expand(rows, length))


def _dropped(targets_BT: Tensor, own: int, items: int | None) -> Iterator[Weighting]:
    """Labels that are left out at one end: of those that count in each row, or of the row."""
    counts_BT, length = (targets_BT != IGNORED).long(), targets_BT.shape[1]
    place_BT = torch.arange(length, device=targets_BT.device).expand_as(targets_BT)
    first_BT = place_BT == counts_BT.argmax(1, keepdim=True)
    last_BT = place_BT == length - 1 - counts_BT.flip(1).argmax(1, keepdim=True)
    for out, out_BT in {
        "the first of each row": first_BT,
        "the last of each row": last_BT,
        "those of the first position": place_BT == 0,
        "those of the last position": place_BT == length - 1 - own,
        "the first and the last of each row": first_BT | last_BT,
    }.items():
        words = f"the loss of all labels but {out}"
        kept_BT = targets_BT.masked_fill(out_BT, IGNORED)
        if count_of(kept_BT):
            yield _evenly(words, kept_BT, items)
            divisor = items or count_of(targets_BT)
            yield _evenly(f"{words}, divided by the number of all", kept_BT, divisor)
