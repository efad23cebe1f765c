"""The door to a model's forward: which argument is called what, and a call by meaning instead of by name.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.errors import Unsupported
from attncheck.subject.compat import CACHE_NAMES, cache_of
from attncheck.subject.encoder import for_rows


@final
@dataclass(frozen=True)
class Reply:
    """What one forward returned: logits_BTV, the cache and the whole output."""

    logits_BTV: Tensor
    cache: Any
    output: Any


def _named(parameters: list[str], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in parameters), None)


@final
@dataclass
class Door:
    """Calls one model. `fixed` holds arguments that every call gets (an encoder's input, for instance)."""

    model: nn.Module
    fixed: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parameters = list(inspect.signature(self.model.forward).parameters)
        self.ids_name = _named(parameters, ("decoder_input_ids", "input_ids")) or (parameters[0] if parameters else "")
        decoder = self.ids_name.startswith("decoder")
        self.mask_name = _named(parameters, ("decoder_attention_mask",) if decoder else ("attention_mask",))
        self.positions_name = _named(parameters, ("decoder_position_ids", "position_ids"))
        self.cache_name = _named(parameters, CACHE_NAMES)
        self.takes_use_cache = "use_cache" in parameters or "kwargs" in parameters
        self.takes_cache_position = "cache_position" in parameters

    def arguments(
        self,
        ids_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        mask: Tensor | None = None,
        cache: Any = None,
        use_cache: bool | None = None,
    ) -> dict[str, Any]:
        """Keyword arguments for `forward`; anything None is left to the model.

        Raises:
            Unsupported: the model has no argument of that meaning.
        """
        asked = {"position_ids": positions_BT, "attention_mask": mask, "cache": cache}
        names = {"position_ids": self.positions_name, "attention_mask": self.mask_name, "cache": self.cache_name}
        dtype = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)
        call = {self.ids_name: ids_BT, **{name: for_rows(value, ids_BT, dtype) for name, value in self.fixed.items()}}
        for meaning, value in asked.items():
            if value is None:
                continue
            if names[meaning] is None:
                raise Unsupported(f"{type(self.model).__name__}.forward takes no `{meaning}`")
            call[str(names[meaning])] = value
        if use_cache is not None and self.takes_use_cache:
            call["use_cache"] = use_cache
        return call

    def call(self, ids_BT: Tensor, **asked: Any) -> Reply:
        """One forward.

        Raises:
            Unsupported: the output holds no logits of shape (B, T, V).
        """
        extra = asked.pop("extra", {})
        output = self.model(**self.arguments(ids_BT, **asked), **extra)
        logits_BTV = getattr(output, "logits", None)
        if not isinstance(logits_BTV, Tensor) or logits_BTV.ndim != 3 or logits_BTV.shape[1] != ids_BT.shape[1]:
            raise Unsupported(f"{type(self.model).__name__} returns no logits for every position")
        return Reply(logits_BTV, cache_of(output), output)
