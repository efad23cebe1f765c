"""The operation where calls on a cache part from one forward, in a module written by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from attncheck.observation.operations import Alignment, Operations, TooLarge
from attncheck.observation.parting import Comparing, Parting

LENGTH, WIDTH = 6, 4
IDS = torch.arange(LENGTH)[None]


class Latent(nn.Module):
    """Keeps what it gets and reads the mean of all before; a flaw forgets the norm in its cache."""

    def __init__(self, flaw: bool) -> None:
        super().__init__()
        self.flaw, self.norm, self.out = flaw, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """(states, what is kept)."""
        kept = x if self.flaw else self.norm(x)
        seen = self.norm(x)
        if past is not None:
            seen = torch.cat([past, seen], 1)
            kept = torch.cat([past, kept], 1)
        count = torch.arange(1, seen.shape[1] + 1, dtype=x.dtype)[-x.shape[1] :]
        mean = seen.cumsum(1)[:, -x.shape[1] :] / count[:, None]
        return x + self.out(mean), kept


class Model(nn.Module):
    """Two layers; `flaw` is in the second one."""

    def __init__(self, flaw: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList([Latent(False), Latent(flaw)])
        self.double()

    def forward(self, ids: Tensor, cache: dict[int, Tensor]) -> Tensor:
        """States of the last layer."""
        x = self.embed(ids)
        for number, layer in enumerate(self.layers):
            x, cache[number] = layer(x, cache.get(number))
        return x


def chunks(model: Model, sizes: tuple[int, ...]) -> Tensor:
    cache: dict[int, Tensor] = {}
    with torch.no_grad():
        return torch.cat([model(ids, cache) for ids in IDS.split(sizes, 1)], 1)


def found(flaw: bool, sizes: tuple[int, ...]) -> tuple[Parting, float] | None:
    model = Model(flaw)
    one: Callable[[], Tensor] = partial(chunks, model, (LENGTH,))
    calls: Callable[[], Tensor] = partial(chunks, model, sizes)
    right = one()
    comparing = Comparing(model, one, calls, 1e-12, lambda each: Alignment(LENGTH, 0, 1, 0, each))
    return comparing.found(
        lambda places: float((comparing.mended(places, calls) - right).abs().max()), 1e-12
    )


@pytest.mark.parametrize("sizes", [(3, 2, 1), (1,) * LENGTH])
def test_the_place_is_the_first_that_only_differs_by_itself(sizes: tuple[int, ...]) -> None:
    parted = found(True, sizes)
    assert parted is not None
    parting, residual = parted
    assert parting.modules == ("layers.1",)
    assert parting.place.text == "seen.cumsum(1)"
    assert parting.place.source.endswith(f"test_parting.py:{parting.place.line}")
    texts = [place.text for _, place, _ in parting.unseen]
    assert texts == ["torch.cat([past, kept], 1)", "torch.cat([past, seen], 1)"]
    assert not parting.certain
    assert parting.calls == tuple(range(1, len(sizes)))
    assert residual < 1e-12


def test_calls_that_agree_have_no_such_place() -> None:
    assert found(False, (3, 2, 1)) is None


def test_what_fills_the_memory_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attncheck.observation.operations.MOST_BYTES", 64)
    model = Model(False)
    with pytest.raises(TooLarge), Operations(model).watching():
        model(IDS, {})


def test_tokens_stand_where_calls_and_padding_put_them() -> None:
    aligned = Alignment(LENGTH, 1, 2, 2, (5, 3))
    new, keys = torch.Size((2, 3, WIDTH)), torch.Size((2, 8, WIDTH))
    whole = torch.Size((1, LENGTH, WIDTH))
    assert aligned.tokens(1) == (5, 8, 5, 8)
    assert aligned.parts(whole, new, 1) == (
        (slice(None), slice(3, 6), slice(None)),
        (slice(1, 2), slice(0, 3), slice(None)),
    )
    assert aligned.parts(whole, keys, 1) == (
        (slice(None), slice(0, 6), slice(None)),
        (slice(1, 2), slice(2, 8), slice(None)),
    )
    assert aligned.parts(whole, torch.Size((2, 7, WIDTH)), 1) is None
