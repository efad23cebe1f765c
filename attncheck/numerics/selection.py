"""Whether a forward selects by value, as routers and sparse attention do: where two values are
nearly equal, rounding alone then decides between two answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

from attncheck.numerics.as_written import AsWritten

SELECTING = frozenset(
    ("argmax", "argmin", "argsort", "bucketize", "kthvalue", "searchsorted", "sort", "topk")
)


@final
class Selecting(AsWritten):
    """Collects the operators that select by value, while active."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in SELECTING:
            self.seen.add(name)
        return func(*args, **(kwargs or {}))
