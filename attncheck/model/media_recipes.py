"""How pictures and sounds may be passed to a forward: the candidates, from the names of its
arguments and the sizes in its config. Which one a model takes is found by trying.

Axes: N items, C channels, F frames, M mel bins.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

import torch
from torch import Tensor

from attncheck.model.compat import config_fields
from attncheck.model.facts import first_int

Kind = Literal["picture", "sound"]
Item = dict[str, Tensor]

PICTURES = ("pixel_values", "image_pixel_values")
SOUNDS = ("input_features", "audio_input_features", "input_values")
SIDE, PATCH, CHANNELS = 28, 14, 3
TILES = (1, 2, 3)
SAMPLES = 4096
FRAMES = (16, 64, 200, 3000)
BETWEEN = 8
"""Pixels are small odd integers over this: exact in every dtype, so that a case measured again in
another precision sees the same picture, and never zero, as an empty place is.
"""


@final
@dataclass(frozen=True, eq=False)
class Recipe:
    """One way to pass the items of a batch.

    `shapes` are those of the `main` argument for one item, its own leading axis included; items
    alternate between them. Items are concatenated, or with `stacked` put into a row axis of their
    own, (B, N, …), missing ones zero. `beside` are arguments that go with each item, one for each
    shape; `whole` says that none was left out.
    """

    kind: Kind
    main: str
    shapes: tuple[tuple[int, ...], ...]
    stacked: bool = False
    whole: bool = True
    beside: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)

    def item(self, seed: int) -> Item:
        """The arguments of one drawn item, float64."""
        number = seed % len(self.shapes)
        generator = torch.Generator().manual_seed(seed)
        size = self.shapes[number]
        drawn = 2 * torch.randint(-BETWEEN, BETWEEN, size, generator=generator) + 1
        others = {name: values[number] for name, values in self.beside.items()}
        return {self.main: drawn.double() / BETWEEN, **others}


def recipes(config: Any, names: Collection[str]) -> Iterator[Recipe]:
    """The candidates for a forward with these arguments, the most telling names first."""
    vision, sound = (_part(config, *parts) for parts in (("vision", "visual"), ("audio", "sound")))
    for main in (each for each in PICTURES if each in names):
        yield from _pictures(main, config, vision, names)
    for main in (each for each in SOUNDS if each in names):
        yield from _sounds(main, sound, names)


def _part(config: Any, *names: str) -> Any:
    """The nested config whose field has one of these words in its name; else the config itself."""
    fields = config_fields(config).items()
    found = [
        value
        for name, value in fields
        if hasattr(value, "model_type") and any(word in name for word in names)
    ]
    return found[0] if found else config


def _pictures(main: str, config: Any, vision: Any, names: Collection[str]) -> Iterator[Recipe]:
    side = _size(vision, ("image_size", "crop_size")) or SIDE
    patch = _size(vision, ("patch_size",)) or PATCH
    channels = first_int(vision, ("num_channels", "in_channels", "in_chans")) or CHANNELS
    if "image_grid_thw" in names:
        yield from _grids(main, vision, channels, patch)
    most = first_int(vision, ("max_num_tiles",)) or max(TILES)
    for size, tiles in itertools.product((side, 2 * side), (0, *sorted({*TILES, most}))):
        shape = (1, *((tiles,) if tiles else ()), channels, size, size)
        beside = _beside_pictures(names, size, patch, max(1, tiles), most)
        for stacked, extra in itertools.product((False, True), _choices(beside)):
            yield _plain("picture", main, shape, stacked, extra, extra is beside)


def _grids(main: str, vision: Any, channels: int, patch: int) -> Iterator[Recipe]:
    """Patches in a row, with a grid (time, height, width) beside them: one wide, one high item."""
    merged = first_int(vision, ("spatial_merge_size", "merge_size")) or 2
    frames = first_int(vision, ("temporal_patch_size",)) or 1
    grids = ((1, 2 * merged, 3 * merged), (1, 3 * merged, 2 * merged))
    patches = grids[0][1] * grids[0][2]
    for size in ((channels * frames * patch * patch,), (channels, patch, patch)):
        yield Recipe(
            "picture",
            main,
            ((patches, *size),) * 2,
            beside={"image_grid_thw": tuple(torch.tensor([grid]) for grid in grids)},
        )


def _beside_pictures(
    names: Collection[str], side: int, patch: int, tiles: int, most: int
) -> dict[str, Tensor]:
    used = torch.arange(max(most, tiles))[None] < tiles
    grid = side // patch
    every = {
        "image_sizes": torch.tensor([[side, side]]),
        "aspect_ratio_ids": torch.tensor([1]),
        "aspect_ratio_mask": used.long(),
        "pixel_attention_mask": torch.ones(1, side, side, dtype=torch.bool),
        "image_attention_mask": torch.ones(1, tiles, grid, grid, dtype=torch.bool),
        "spatial_shapes": torch.tensor([[grid, grid]]),
        "target_sizes": torch.tensor([[grid, grid]]),
    }
    return {name: value for name, value in every.items() if name in names}


def _choices(beside: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """With everything that has a name for it, and with nothing."""
    return [beside, {}] if beside else [{}]


def _sounds(main: str, sound: Any, names: Collection[str]) -> Iterator[Recipe]:
    bins = first_int(sound, ("num_mel_bins", "input_size", "input_dim", "feature_size")) or 80
    sizes: list[tuple[int, ...]] = [(1, SAMPLES)] if main == "input_values" else []
    for frames in () if sizes else FRAMES:
        sizes += [(1, bins, frames), (1, frames, bins)]
    for size in sizes:
        frames = max(size[1:])
        masks = {
            "input_features_mask": torch.ones(1, frames, dtype=torch.long),
            "feature_attention_mask": torch.ones(1, frames, dtype=torch.long),
            "padding_mask": torch.ones(1, frames, dtype=torch.long),
        }
        masks = {name: value for name, value in masks.items() if name in names}
        if "audio_embed_sizes" in names:
            shorter = first_int(sound, ("time_reduction",)) or 1
            masks["audio_embed_sizes"] = torch.tensor([-(-frames // shorter)])
        for extra in _choices(masks):
            yield _plain("sound", main, size, False, extra, extra is masks)


def _plain(
    kind: Kind,
    main: str,
    shape: tuple[int, ...],
    stacked: bool,
    beside: dict[str, Tensor],
    whole: bool,
) -> Recipe:
    extra = {name: (value,) for name, value in beside.items()}
    return Recipe(kind, main, (shape,), stacked, whole, extra)


def _size(config: Any, names: tuple[str, ...]) -> int | None:
    values = (getattr(config, name, None) for name in names)
    flat = [value[0] if isinstance(value, (list, tuple)) and value else value for value in values]
    return next((value for value in flat if isinstance(value, int) and value > 0), None)
