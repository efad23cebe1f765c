"""How a model is loaded and called: the options of `run`, as data. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final

DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")
PRECISIONS = ("float16", "bfloat16", "float32", "float64")
DtypeName = Literal["auto", "float64", "float32", "bfloat16", "float16"]


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """How one model is loaded."""

    attn: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    device_map: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    random_init: bool = False
    layers: int | None = None
    seed: int = 0
    prompt: str | None = None
    offline: bool = False
    length: int | None = None
    cache: str | None = None
    tp: int | None = None
    compiled: str | None = None

    def changes(self) -> dict[str, Any]:
        """The values that differ from the defaults."""
        usual = vars(Settings())
        return {name: value for name, value in vars(self).items() if value != usual[name]}
