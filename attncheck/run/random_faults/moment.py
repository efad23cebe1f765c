"""What kind of call runs now, so that a fault can be limited to some calls.

Axes: B batch, T new positions.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, final

from torch import Tensor

from attncheck.faults.engine.injection import at_arguments, cache_argument, tokens_before
from attncheck.model.caches import tensors_of
from attncheck.model.subject import Subject


@final
@dataclass
class Moment:
    """The call of the model that runs now. `before` counts the cached tokens, where the cache does;
    `seen` keeps what earlier layers of this call computed.
    """

    rows: int = 1
    new: int = 1
    before: int = 0
    filled: bool = False
    caching: bool = False
    static: bool = False
    padded: bool = False
    cache: Any = None
    seen: dict[str, Tensor] = field(default_factory=dict)

    def is_when(self, when: str) -> bool:
        """Whether a fault that is limited to some calls shows in this one."""
        return {
            "always": True,
            "first": not self.filled,
            "uncached": not self.filled and not self.caching,
            "cached": self.filled,
            "step": self.filled and self.new == 1,
            "chunk": self.filled and self.new > 1,
            "batch": self.rows > 1,
            "padded": self.padded,
            "static": self.static,
        }[when]


def followed(subject: Subject, moment: Moment) -> AbstractContextManager[None]:
    """While active, the moment describes the call that runs. Enter it last: it must come before
    other edits of the call.
    """

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        _note(subject, moment, call)
        return call

    return at_arguments(subject, edit)


def _note(subject: Subject, moment: Moment, call: dict[str, Any]) -> None:
    ids_BT = call.get(subject.forward_adapter.ids_name)
    if isinstance(ids_BT, Tensor):
        moment.rows, moment.new = int(ids_BT.shape[0]), int(ids_BT.shape[1])
    cache = cache_argument(subject, call)
    given = call.get("use_cache")
    default = getattr(subject.text_config, "use_cache", False)
    moment.cache = cache
    moment.filled = next(tensors_of(cache), None) is not None
    moment.before = tokens_before(subject, call) if moment.filled else 0
    moment.caching = cache is not None or bool(default if given is None else given)
    moment.static = "Static" in type(getattr(cache, "self_attention_cache", cache)).__name__
    mask = call.get(subject.forward_adapter.mask_name or "")
    moment.padded = isinstance(mask, Tensor) and mask.ndim == 2 and not bool(mask.all())
    moment.seen = {}
