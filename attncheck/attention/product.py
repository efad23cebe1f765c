"""Products of two tensors with named axes: queries with keys, and weights with values.

Axes: B batch, H heads, G heads that the right operand has, X rows and Y columns of any kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

Place = int | str | tuple[int, int]
"""Where an operation takes an operand: a positional argument, a named one, or inside a list."""

PLAIN: Mapping[
    Callable[..., Any], tuple[tuple[int, tuple[str, ...]], tuple[int, tuple[str, ...]]]
] = {
    torch.matmul: ((0, ("input",)), (1, ("other",))),
    torch.Tensor.matmul: ((0, ("self",)), (1, ("other", "tensor2"))),
    torch.Tensor.__matmul__: ((0, ()), (1, ())),
    torch.bmm: ((0, ("input",)), (1, ("mat2",))),
    torch.Tensor.bmm: ((0, ()), (1, ("mat2",))),
    torch.baddbmm: ((1, ("batch1",)), (2, ("batch2",))),
    torch.Tensor.baddbmm: ((1, ("batch1",)), (2, ("batch2",))),
}
"""For each function, where its left and right operands stand and what they may be called."""
ONE = "1"
"""In the axes of an operand: an axis of size 1, along which the other operand goes on."""


@final
@dataclass(frozen=True, kw_only=True)
class Product:
    """left (…, T, D) times right (…, D, S) in any order of axes: letters name the axes of both and
    of the outcome.

    `batch` are the axes that all three share, `row` is only the left's, `column` only the right's,
    `inner` is summed over. `group` is only the left's as well: the query heads that share a key
    head.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    named: Mapping[str, Any]
    places: tuple[Place, Place]
    axes: tuple[str, str, str]
    batch: str
    row: str
    inner: str
    column: str
    group: str = ""

    @property
    def left(self) -> Tensor:
        """The left operand as passed to the operation."""
        left: Tensor = _at(self.args, self.named, self.places[0])
        return left

    @property
    def right(self) -> Tensor:
        """The right operand as passed to the operation."""
        right: Tensor = _at(self.args, self.named, self.places[1])
        return right

    def run(self, left: Tensor, right: Tensor) -> Any:
        """The same call with other operands, both in the order of axes that the call has."""
        args, named = list(self.args), dict(self.named)
        for place, value in zip(self.places, (left, right), strict=True):
            _put(args, named, place, value)
        return self.func(*args, **named)

    def with_rows(self, which: int, length: int) -> Product:
        """This product with one axis of rows. Of two axes that only the left has, the one of
        `length` counts queries, else the last one in the operand or outcome that holds scores or
        weights (`which`); the other one counts the heads of a group.
        """
        axes, sizes = self.axes[which], dict(zip(self.axes[0], self.left.shape, strict=True))
        row = max(self.row, key=lambda letter: (sizes[letter] == length, axes.index(letter)))
        group = self.group + self.row.replace(row, "")
        batch = "".join(letter for letter in axes if letter in self.batch)
        heads = "".join(letter for letter in axes if letter in self.batch + group)
        # heads in turns, not in groups: no order of ours says that
        return replace(self, row=row, group=group if heads == batch + group else "", batch=batch)

    @property
    def readable(self) -> bool:
        """Whether every axis has a name, and the heads of a group lie side by side."""
        return len(self.axes[0]) == len(self.batch + self.group) + 2

    def _lead(self, which: int) -> str:
        return self.batch if which == 1 else self.batch + self.group

    def heads(self, which: int, tensor: Tensor, tail: str, rows: int) -> Tensor | None:
        """An operand (0, 1) or the outcome (2) as (B, H, X, Y), `tail` naming X and Y; None where
        its axes do not allow that.
        """
        axes, lead = self.axes[which], self._lead(which)
        if ONE in axes:
            tensor, axes = tensor.squeeze(axes.index(ONE)), axes.replace(ONE, "")
        moved = tensor.permute([axes.index(letter) for letter in lead + tail])
        if len(lead) == 1 and moved.shape[0] % rows == 0:
            return moved.reshape(rows, -1, *moved.shape[1:])
        if len(lead) == 3 and self.group:
            moved, lead = moved.flatten(1, 2), lead[:2]
        return moved if len(lead) == 2 and moved.shape[0] in (1, rows) else None

    def laid_out(self, which: int, tensor_BHXY: Tensor, tail: str) -> Tensor:
        """The way back: (B, H, X, Y) in the order of axes that an operand (0, 1) or the outcome (2)
        has.
        """
        axes, lead = self.axes[which], self._lead(which)
        moved = tensor_BHXY.flatten(0, 1) if len(lead) == 1 else tensor_BHXY
        if len(lead) == 3:
            size = self.left.shape[self.axes[0].index(self.group)]
            moved = moved.reshape(len(moved), -1, size, *moved.shape[2:])
        letters = lead + tail
        moved = moved.permute([letters.index(letter) for letter in axes.replace(ONE, "")])
        return moved.unsqueeze(axes.index(ONE)) if ONE in axes else moved


def product_of(
    func: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]
) -> Product | None:
    """The operation as a product of two computed tensors; None for any other, such as a product
    with weights of the model.
    """
    if func is torch.einsum:
        return _of_equation(func, args, named)
    if func not in PLAIN:
        return None
    places = tuple(_place(args, named, *each) for each in PLAIN[func])
    if None in places:
        return None
    left, right = (_at(args, named, place) for place in places if place is not None)
    if not (_computed(left) and _computed(right)) or left.ndim != right.ndim or left.ndim < 3:
        return None
    letters = "abcefgh"[: left.ndim - 2]
    group = _repeated(letters, left, right)
    shared = letters.replace(group, ONE) if group else letters
    return Product(
        func=func,
        args=args,
        named=named,
        places=places,  # type: ignore[arg-type]
        axes=(letters + "td", shared + "ds", letters + "ts"),
        batch=shared.replace(ONE, ""),
        group=group,
        row="t",
        inner="d",
        column="s",
    )


def _repeated(letters: str, left: Tensor, right: Tensor) -> str:
    """The axis of a product of five axes along which the right operand is repeated."""
    found = [
        letter
        for letter, many, one in zip(letters, left.shape, right.shape, strict=False)
        if one == 1 < many
    ]
    return found[0] if len(letters) == 3 and len(found) == 1 and found[0] != letters[0] else ""


def _of_equation(
    func: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]
) -> Product | None:
    if not args or not isinstance(args[0], str) or named:
        return None
    inside = len(args) == 2 and isinstance(args[1], (list, tuple))
    operands, places = (args[1], ((1, 0), (1, 1))) if inside else (args[1:], (1, 2))
    inputs, arrow, out = args[0].replace(" ", "").partition("->")
    letters = inputs.split(",")
    if not arrow or "." in args[0] or len(operands) != 2 or not all(map(_computed, operands)):
        return None
    left, right = map(set, letters)
    batch = "".join(letter for letter in out if letter in left & right)
    row, inner, column = left - right, (left & right) - set(out), right - left
    if (
        len(letters) != 2
        or any(len(each) != 1 for each in (inner, column))
        or len(row) not in (1, 2)
        or set(out) != set(batch) | row | column
    ):
        return None
    return Product(
        func=func,
        args=args,
        named=named,
        places=places,
        axes=(letters[0], letters[1], out),
        batch=batch,
        row="".join(sorted(row)),
        inner=inner.pop(),
        column=column.pop(),
    )


def of_three(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], str, Any] | None:
    """A product of three operands by an equation as one of the first two, and the equation that
    multiplies it with the third; None for any other call.
    """
    if len(args) != 4 or not isinstance(args[0], str) or "." in args[0]:
        return None
    inputs, arrow, out = args[0].replace(" ", "").partition("->")
    letters = inputs.split(",")
    if not arrow or len(letters) != 3:
        return None
    kept = "".join(
        letter
        for letter in dict.fromkeys(letters[0] + letters[1])
        if letter in letters[2] or letter in out
    )
    first = (f"{letters[0]},{letters[1]}->{kept}", args[1], args[2])
    return first, f"{kept},{letters[2]}->{out}", args[3]


def _computed(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and not isinstance(value, nn.Parameter)
        and value.is_floating_point()
    )


def _place(
    args: tuple[Any, ...], named: Mapping[str, Any], index: int, names: tuple[str, ...]
) -> Place | None:
    if index < len(args):
        return index
    return next((name for name in names if name in named), None)


def _at(args: Any, named: Mapping[str, Any], place: Place) -> Any:
    if isinstance(place, tuple):
        return args[place[0]][place[1]]
    return named[place] if isinstance(place, str) else args[place]


def _put(args: list[Any], named: dict[str, Any], place: Place, value: Tensor) -> None:
    if isinstance(place, tuple):
        args[place[0]] = [
            value if number == place[1] else each for number, each in enumerate(args[place[0]])
        ]
    elif isinstance(place, str):
        named[place] = value
    else:
        args[place] = value
