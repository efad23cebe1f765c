"""What a loss may have made of its labels instead: which label each position is trained on, and how
much it counts.

Every loss here is a sum over positions of a weight times the negative log-likelihood of a label, so
that a wrong loss is named by its value, or by what it does to the logits.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from attncheck.probing import IGNORED

Kind = Literal["usual", "shift", "items", "weight"]
SHIFTS = {
    -1: "the loss of labels that are shifted the wrong way",
    0: "the loss of labels that are not shifted",
    1: "the loss of labels that are shifted once",
    2: "the loss of labels that are shifted twice",
}
NO_ITEMS = "the mean over its own labels (`num_items_in_batch` changes nothing)"


@final
@dataclass(frozen=True, kw_only=True)
class Weighing:
    """One way to weigh labels: the label of each position (-100 for none) and its weight, both (B,
    T).
    """

    words: str
    kind: Kind
    targets_BT: Tensor
    weights_BT: Tensor
    shift: int = 1

    def value(self, logs_BTV: Tensor) -> float:
        """The loss from the logarithms of the probabilities."""
        kept_BT = self.targets_BT != IGNORED
        likely_BT = logs_BTV.gather(-1, self.targets_BT.clamp_min(0)[..., None])[..., 0]
        return float(-(likely_BT * self.weights_BT)[kept_BT].sum())

    def slopes(self, logs_BTV: Tensor) -> Tensor:
        """The derivative of the loss by each logit, (B, T, V)."""
        kept_BT = self.targets_BT != IGNORED
        slopes_BTV = logs_BTV.exp()
        slopes_BTV.scatter_add_(
            -1, self.targets_BT.clamp_min(0)[..., None], -torch.ones_like(slopes_BTV[..., :1])
        )
        return torch.where(
            kept_BT[..., None],
            slopes_BTV * self.weights_BT[..., None],
            torch.zeros_like(slopes_BTV),
        )

    @property
    def total(self) -> float:
        """The sum of all weights: how much larger than a mean the loss is."""
        return float(self.weights_BT[self.targets_BT != IGNORED].sum())


def moved(labels_BT: Tensor, shift: int) -> Tensor:
    """The label that each position is trained on, (B, T), with -100 where the row has ended."""
    targets_BT = labels_BT.roll(-shift, 1)
    length = labels_BT.shape[1]
    targets_BT[:, slice(length - shift, length) if shift >= 0 else slice(-shift)] = IGNORED
    return targets_BT


def usual(labels_BT: Tensor, own: int, items: int | None) -> Weighing:
    """The right loss: a mean over the labels that count, or their sum divided by `items`."""
    return _evenly("the cross entropy", "usual", moved(labels_BT, own), items, own)


def _evenly(
    words: str, kind: Kind, targets_BT: Tensor, divisor: float | None, shift: int = 1
) -> Weighing:
    count = int((targets_BT != IGNORED).sum())
    weights_BT = torch.full(
        targets_BT.shape,
        1.0 / (divisor or max(count, 1)),
        dtype=torch.float64,
        device=targets_BT.device,
    )
    return Weighing(
        words=words, kind=kind, targets_BT=targets_BT, weights_BT=weights_BT, shift=shift
    )


def wrong(
    labels_BT: Tensor,
    own: int,
    items: int | None,
    fills: tuple[int, ...],
    shown_BT: Tensor | None = None,
) -> Iterator[Weighing]:
    """Wrong losses, the usual suspects first.

    `fills` are the ids that -100 may have been taken for; `shown_BT` is the 2D mask of the call.
    """
    for shift, words in SHIFTS.items():
        targets_BT = moved(labels_BT, shift)
        if shift != own and bool((targets_BT != IGNORED).any()):
            yield _evenly(words, "shift", targets_BT, items, shift)
            if items:
                yield _evenly(f"{words}, and {NO_ITEMS}", "shift", targets_BT, None, shift)
    targets_BT = moved(labels_BT, own)
    if items:
        yield _evenly(NO_ITEMS, "items", targets_BT, None)
        yield _evenly(
            "the mean, divided by `num_items_in_batch` as well",
            "weight",
            targets_BT,
            float(items * _count(targets_BT)),
        )
    yield from _divided(labels_BT, targets_BT, own, shown_BT)
    yield from _dropped(targets_BT, own, items)
    yield from _filled(targets_BT, own, items, fills)
    if labels_BT.shape[0] > 1 and own:
        flat_BT = labels_BT.flatten().roll(-own).reshape(labels_BT.shape)
        flat_BT[-1, -own:] = IGNORED
        yield _evenly(
            "the loss of labels that are shifted across the rows of the batch",
            "weight",
            flat_BT,
            items,
        )


def _count(targets_BT: Tensor) -> int:
    return int((targets_BT != IGNORED).sum())


def _divided(
    labels_BT: Tensor, targets_BT: Tensor, own: int, shown_BT: Tensor | None
) -> Iterator[Weighing]:
    rows, length = labels_BT.shape
    seen_BT = torch.ones_like(labels_BT) if shown_BT is None else shown_BT
    divisors = {
        "the sum, which nothing divides": 1.0,
        "the sum divided by all positions": float(rows * length),
        "the sum divided by all positions that have a next one": float(rows * (length - own)),
        "the sum divided by the number of labels before they are shifted": float(_count(labels_BT)),
        "the sum divided by the number of rows": float(rows),
        "the sum divided by the length of a row": float(length),
        "the sum divided by the tokens that the mask shows": float(seen_BT.sum()),
        "the sum divided by the tokens that the mask shows after the first": float(
            seen_BT[:, own:].sum()
        ),
    }
    for words, divisor in divisors.items():
        yield _evenly(words, "weight", targets_BT, divisor)
    counts_B1 = (targets_BT != IGNORED).sum(1, keepdim=True).double()
    none_counts = (
        counts_B1 / counts_B1
    ).mean()  # the mean of a row without labels is 0 / 0, and so is all that it enters
    weights_BT = (none_counts / (rows * counts_B1)).expand(rows, length)
    words = "the mean of each row's mean, in which rows with few labels weigh too much"
    yield Weighing(words=words, kind="weight", targets_BT=targets_BT, weights_BT=weights_BT)
    some_BT = (1.0 / (counts_B1.clamp_min(1) * int((counts_B1 > 0).sum()))).expand(rows, length)
    yield Weighing(words=words, kind="weight", targets_BT=targets_BT, weights_BT=some_BT)


def _dropped(targets_BT: Tensor, own: int, items: int | None) -> Iterator[Weighing]:
    """Labels that are left out: the first or the last that counts in each row, or at each end of
    the row.
    """
    where_BT = (targets_BT != IGNORED).long()
    length = targets_BT.shape[1]
    order_BT = torch.arange(length, device=targets_BT.device).expand_as(targets_BT)
    first_B1 = where_BT.argmax(1, keepdim=True)
    last_B1 = length - 1 - where_BT.flip(1).argmax(1, keepdim=True)
    for words, out_BT in {
        "the loss of all labels but the first of each row": order_BT == first_B1,
        "the loss of all labels but the last of each row": order_BT == last_B1,
        "the loss of all labels but those of the first position": order_BT == 0,
        "the loss of all labels but those of the last position": order_BT == length - 1 - own,
        "the loss of all labels but the first and the last of each row": (order_BT == first_B1)
        | (order_BT == last_B1),
    }.items():
        kept_BT = targets_BT.masked_fill(out_BT, IGNORED)
        if _count(kept_BT):
            yield _evenly(words, "weight", kept_BT, items)
            yield _evenly(
                f"{words}, divided by the number of all",
                "weight",
                kept_BT,
                items or _count(targets_BT),
            )


def _filled(
    targets_BT: Tensor, own: int, items: int | None, fills: tuple[int, ...]
) -> Iterator[Weighing]:
    ends = targets_BT.shape[1] - own
    for fill in fills:
        counted_BT = targets_BT.masked_fill(targets_BT == IGNORED, fill)
        counted_BT[:, ends:] = IGNORED
        yield _evenly(
            f"the loss with labels of -100 that count as token {fill}", "weight", counted_BT, items
        )


def smoothed(logs_BTV: Tensor, right: Weighing, share: float) -> float:
    """The right loss with labels smoothed: a share of each goes to all tokens alike."""
    kept_BT = right.targets_BT != IGNORED
    spread = float(-(logs_BTV.mean(-1) * right.weights_BT)[kept_BT].sum())
    return (1.0 - share) * right.value(logs_BTV) + share * spread


def smoothing(loss: float, logs_BTV: Tensor, right: Weighing) -> float | None:
    """The share of label smoothing that gives this loss, or None where no share between 0 and 1
    does.
    """
    plain = right.value(logs_BTV)
    width = smoothed(logs_BTV, right, 1.0) - plain
    share = (loss - plain) / width if width else 0.0
    return share if 0.0 < share < 1.0 else None
