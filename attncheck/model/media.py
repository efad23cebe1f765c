"""Pictures and sounds of a model that takes them: drawn by seed, in the shape that its forward
accepts, each in its place in a row.

Axes: B batch, T positions, N items.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.core.errors import Unsupported, first_line
from attncheck.model.compat import config_fields, config_of, text_config
from attncheck.model.facts import configs_in, first_int
from attncheck.model.forward_spec import Media
from attncheck.model.inputs import Row, for_rows
from attncheck.model.kept_state import model_untouched
from attncheck.model.media_recipes import Item, Recipe, recipes
from attncheck.model.signature import parameters_of

PLACEHOLDERS = {
    "picture": re.compile(r"image_token_(id|index)|image_patch_id|img_context_token_id"),
    "sound": re.compile(r"(audio|sound|speech)_token_(id|index)"),
}
STARTS = re.compile(r"(vision_start|image_start|image_bos|boi)_token_(id|index)")
ENDS = re.compile(r"(vision_end|image_end|eoi)_token_(id|index)")
TOKEN_TYPES = ("token_type_ids", "mm_token_type_ids")
CROSS_MASKS = ("cross_attention_mask",)
MOST = 4096
BEFORE, AFTER = 5, 6
TRIED = (1, 2)
"""Seeds of the two items that tell whether an item changes anything."""
Call = Callable[["Medium", Row, Media], Tensor]
"""logits_BTV of one row with the items of a medium."""


@final
@dataclass(frozen=True, eq=False)
class Medium:
    """One kind of item that a model takes, and how.

    `count` placeholders stand for an item in a row; 0 where items come in front of the whole row.
    `matters` is whether another item changes the logits. `prefix` says that token types of 0 mark a
    prefix that is read both ways, rather than text. `unusable` is the reason where nothing worked.
    """

    kind: str
    recipe: Recipe | None = None
    placeholder: int | None = None
    count: int = 0
    around: tuple[Row, Row] = ((), ())
    names: frozenset[str] = frozenset()
    matters: bool = False
    prefix: bool = False
    unusable: str = ""

    @cached_property
    def span(self) -> Row:
        """The ids that stand for one item in a row."""
        if self.placeholder is None:
            return ()
        return (*self.around[0], *(self.placeholder,) * self.count, *self.around[1])

    def require(self) -> Recipe:
        """The recipe.

        Raises:
            Unsupported: no way to pass an item was found.
        """
        if self.recipe is None:
            raise Unsupported(self.unusable)
        return self.recipe

    def starts(self, ids_T: Tensor) -> list[int]:
        """Where the items of a row begin: the first of each run of placeholders."""
        if self.placeholder is None:
            return []
        here_T = ids_T == self.placeholder
        first_T = here_T & ~torch.cat([here_T.new_zeros(1), here_T[:-1]])
        return [int(index) for index in first_T.nonzero()[:, 0]]

    def arguments(
        self,
        ids_BT: Tensor,
        media: Media,
        dtype: torch.dtype,
        start: int = 0,
        stop: int | None = None,
    ) -> dict[str, Any]:
        """The arguments beside tokens [start, stop) of whole rows, on the device of the ids."""
        stop = ids_BT.shape[1] if stop is None else stop
        rows = [self._places(ids_T, seeds) for ids_T, seeds in zip(ids_BT, media.rows, strict=True)]
        here = [[seed for seed, at in row if start <= at < stop] for row in rows]
        found: dict[str, Any] = {}
        if any(here):
            found |= self._joined(here)
        if any(here) or (self.prefix and start == 0):
            found |= self._types(ids_BT, media.prompt, start, stop)
        seen = [[at for _, at in row if at < stop] for row in rows]
        if any(seen) and (crossed := self.names.intersection(CROSS_MASKS)):
            mask = self._crossing(seen, ids_BT.shape[1])[:, start:stop]
            found |= dict.fromkeys(crossed, mask)
        kept = {name: value for name, value in found.items() if name not in media.without}
        return {
            name: for_rows(value, value, dtype).to(ids_BT.device) for name, value in kept.items()
        }

    def _places(self, ids_T: Tensor, seeds: tuple[int, ...]) -> list[tuple[int, int]]:
        """(seed, place) of each item of a row."""
        starts = self.starts(ids_T) if self.span else [0] * len(seeds)
        return list(zip(seeds, starts, strict=True))

    def _joined(self, rows: list[list[int]]) -> Item:
        recipe = self.require()
        items = [[recipe.item(seed) for seed in row] for row in rows]
        usual = next(item for row in items for item in row)
        if not recipe.stacked:
            return {
                name: torch.cat([item[name] for row in items for item in row]) for name in usual
            }
        most = max(map(len, items))
        return {
            name: torch.stack([_filled(row, name, value, most) for row in items])
            for name, value in usual.items()
        }

    def _types(self, ids_BT: Tensor, prompt: int, start: int, stop: int) -> Item:
        """Token types as a processor gives them: 1 at the placeholders, or 0 up to the end of the
        prompt where they mark a prefix.
        """
        found = {}
        for name in self.names.intersection(TOKEN_TYPES):
            types_BT = torch.eq(ids_BT, self.placeholder or -1).long()
            if self.prefix and name == TOKEN_TYPES[0]:
                after_T = torch.arange(ids_BT.shape[1], device=ids_BT.device) >= (prompt or stop)
                types_BT = after_T.long().expand(ids_BT.shape).clone()
            found[name] = types_BT[:, start:stop]
        return found

    def _crossing(self, rows: list[list[int]], length: int) -> Tensor:
        """(B, T, N, tiles) of items at these places: a token reads the item before it, up to where
        the next one begins.
        """
        (_, *beside), most = self.require().item(0), max(map(len, rows))
        tiles = max((self._tiles(name) for name in beside), default=1)
        mask = torch.zeros(len(rows), length, most, tiles, dtype=torch.long)
        for number, row in enumerate(rows):
            for index, (start, stop) in enumerate(pairwise([*row, length])):
                mask[number, start:stop, index, :1] = 1
        return mask

    def _tiles(self, name: str) -> int:
        value = self.require().item(0)[name]
        return value.shape[-1] if name == "aspect_ratio_mask" else 1


def _filled(row: list[Item], name: str, like: Tensor, most: int) -> Tensor:
    parts = [item[name] for item in row]
    return torch.cat([*parts, *(torch.zeros_like(like),) * (most - len(row))])


def find_media(model: nn.Module, pool: Row, call: Call) -> tuple[Medium, ...]:
    """Every kind of item that a model takes; empty for a model whose forward names none.

    A kind that is named and could not be passed is returned with the reason.
    """
    names = frozenset(parameters_of(model))
    config, found = config_of(model), dict[str, Medium]()

    def fresh(*asked: Any) -> Any:
        with model_untouched(model):  # what it keeps of one item must not decide about the next
            return call(*asked)

    for recipe in recipes(config, names):
        known = found.get(recipe.kind)
        if known is not None and known.matters:
            continue
        tried = _tried(recipe, config, names, pool, fresh)
        # without its companions or its place an item may be ignored by right
        telling = tried.matters or (recipe.whole and tried.count > 0)
        if known is None or (telling and known.recipe is None) or tried.matters:
            found[recipe.kind] = tried if telling else _ignored(tried)
    return tuple(found.values())


def _ignored(tried: Medium) -> Medium:
    reason = f"no way to pass a {tried.kind} was found: one that is passed changes nothing"
    return Medium(tried.kind, unusable=tried.unusable or reason)


def _tried(recipe: Recipe, config: Any, names: frozenset[str], pool: Row, call: Call) -> Medium:
    place = _token(config, PLACEHOLDERS[recipe.kind])
    around = tuple(
        () if (token := _token(config, pattern)) is None or recipe.kind != "picture" else (token,)
        for pattern in (STARTS, ENDS)
    )
    counts, tried, reason = [0 if place is None else 1], set[int](), ""
    width = first_int(text_config(config), ("hidden_size", "d_model", "n_embd")) or 1
    while counts:
        count = counts.pop(0)
        tried.add(count)
        medium = Medium(recipe.kind, recipe, place, count, around, names)  # type: ignore[arg-type]
        try:
            return _answered(medium, pool, call)
        except Exception as error:
            reason = reason or f"no way to pass a {recipe.kind} was found: {first_line(error)}"
            if place is not None:
                named = {int(number) for number in re.findall(r"\d+", str(error))}
                named |= {number // width for number in named}
                counts += sorted(n for n in named - tried - {*counts} if 0 < n <= MOST)
    return Medium(recipe.kind, unusable=reason)


def _answered(medium: Medium, pool: Row, call: Call) -> Medium:
    """The medium, with what its effect tells of it."""
    row = (*pool[:BEFORE], *medium.span, *pool[BEFORE : BEFORE + AFTER])
    first_BTV, second_BTV = (call(medium, row, Media(medium.kind, ((seed,),))) for seed in TRIED)
    matters = not torch.equal(first_BTV[:, -1], second_BTV[:, -1])
    if TOKEN_TYPES[0] not in medium.names:
        return replace(medium, matters=matters)
    # zeros everywhere: a prefix that is read both ways, or nothing but text
    media, prefix = Media(medium.kind, ((TRIED[0],),)), replace(medium, prefix=True)
    other = (*row[:-1], pool[BEFORE + AFTER])
    usual_BTV, changed_BTV = (call(prefix, each, media)[:, BEFORE:-1] for each in (row, other))
    return replace(medium, matters=matters, prefix=not torch.equal(usual_BTV, changed_BTV))


def _token(config: Any, pattern: re.Pattern[str]) -> int | None:
    """The id that a config or one in it names by such a field."""
    values: Iterator[Any] = (
        value
        for part in configs_in(config)
        for name, value in _fields(part)
        if pattern.fullmatch(name)
    )
    return next((value for value in values if isinstance(value, int)), None)


def _fields(config: Any) -> Iterable[tuple[str, Any]]:
    return config_fields(config).items()
