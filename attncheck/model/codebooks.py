"""Codes of several codebooks beside each token, for models that read them: worked out from the
token itself, so that a row of tokens says everything.

Axes: B batch, T positions, C codebooks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.model.compat import config_of
from attncheck.model.facts import first_int
from attncheck.model.signature import parameters_of

NUMBER = ("num_codebooks",)
SIZES = ("codebook_vocab_size", "audio_vocab_size", "codebook_size")
SIZE = 64
"""Codes in use: fewer than any codebook holds, and a power of two, so that different tokens get
different codes.
"""
CODES = "_audio_codes"
TRIED = (11, 12, 13)


@final
@dataclass(frozen=True)
class Codebooks:
    """`number` codes for each token: in arguments of their own, (B, C, T), where `names` says so,
    otherwise as further columns of the ids, (B, T, 1 + C). The codebook numbered `other` has other
    codes.
    """

    number: int
    size: int = SIZE
    names: tuple[str, ...] = ()
    other: int | None = None

    def codes(self, ids_BT: Tensor, salt: int = 0) -> Tensor:
        """codes_BCT, a different function of the token for each codebook and salt."""
        books_C = torch.arange(self.number, device=ids_BT.device) + salt * self.number
        spread_BCT = ids_BT[:, None] * (2 * books_C[:, None] + 3) + 7 * books_C[:, None] + 1
        other = -1 if self.other is None else self.other
        return (spread_BCT + torch.eq(books_C, other).long()[:, None]) % self.size

    def arguments(self, ids_name: str, ids_BT: Tensor) -> dict[str, Any]:
        """The arguments in place of the ids alone."""
        if self.names:
            codes = {name: self.codes(ids_BT, salt) for salt, name in enumerate(self.names)}
            return {ids_name: ids_BT, **codes}
        columns = torch.cat([ids_BT[:, None], self.codes(ids_BT)], 1)
        return {ids_name: columns.transpose(1, 2)}

    @property
    def every(self) -> range:
        """The numbers of all codebooks, those of each argument one after the other."""
        return range(self.number * max(1, len(self.names)))


def codebooks_of(model: nn.Module, ids_name: str) -> Codebooks | None:
    """The codebooks that a model reads beside its tokens, found by trying where its config names
    any and tokens alone are refused.
    """
    config = config_of(model)
    number = first_int(config, NUMBER)
    if number is None or number < 2 or _runs(model, {ids_name: torch.tensor([TRIED])}):
        return None
    size = min(SIZE, first_int(config, SIZES) or SIZE)
    names = tuple(name for name in parameters_of(model) if name.endswith(CODES))
    for given in ((names,) if names else ()) + ((),):
        found = Codebooks(number, size, given)
        if _runs(model, found.arguments(ids_name, torch.tensor([TRIED]))):
            return found
    return None


def _runs(model: nn.Module, arguments: dict[str, Any]) -> bool:
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    try:
        with torch.no_grad():
            model(**{name: value.to(device) for name, value in arguments.items()})
    except Exception:
        return False
    return True
