"""A drawn picture for models whose text path wants one, or whose loss counts its tokens.

Axes: B batch, T text positions, V vocabulary.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from attncheck.probing import REFUSALS, Subject, Unsupported, first_line

PIXELS = "pixel_values"
SEED = 29


def picture(subject: Subject) -> dict[str, Tensor]:
    """The keyword arguments of one drawn picture, (1, channels, side, side)."""
    vision = getattr(subject.config, "vision_config", None)
    side = getattr(vision, "image_size", None)
    if PIXELS not in inspect.signature(subject.model.forward).parameters or not isinstance(
        side, int
    ):
        raise Unsupported("the model takes no picture")
    generator = torch.Generator().manual_seed(SEED)
    channels = int(getattr(vision, "num_channels", 3) or 3)
    drawn = torch.randn(1, channels, side, side, generator=generator, dtype=torch.float64)
    return {PIXELS: drawn.to(subject.device, subject.dtype)}


def loss_with_picture(subject: Subject, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
    """(logits_BTV of the text behind the picture, loss) of one call on the main input."""
    ids_BT = subject.passes.ids(subject.inputs.tokens)
    spec: dict[str, Any] = {
        **subject.forward_adapter.arguments(ids_BT),
        **picture(subject),
        "labels": labels_BT,
    }
    with torch.no_grad(), subject.numerics():
        try:
            output = subject.model(**spec)
        except REFUSALS as error:
            raise Unsupported(
                f"{type(subject.model).__name__} with a picture raises {first_line(error)}"
            ) from error
    if getattr(output, "loss", None) is None or output.logits.shape[1] < ids_BT.shape[1]:
        raise Unsupported("the model computes no loss behind a picture")
    return output.logits[:, -ids_BT.shape[1] :], output.loss
