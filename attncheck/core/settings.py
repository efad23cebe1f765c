"""How a model is loaded and called: the options of `run`, as data. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final

from attncheck.core.errors import UsageError, unknown
from attncheck.core.visible import shortened

DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")
PRECISIONS = ("float16", "bfloat16", "float32", "float64")
DtypeName = Literal["auto", "float64", "float32", "bfloat16", "float16"]
SWITCHES = ("trust_remote_code", "random_init", "offline", "reach")
NUMBERS = {
    "layers": (1, 1 << 16),
    "length": (1, 1 << 24),
    "seed": (-(1 << 63), (1 << 63) - 1),
    "tp": (1, 1 << 16),
    "rate": (1, 1 << 16),
    "requests": (1, 1 << 24),
    "patience": (1, 1 << 16),
}
"""Settings that are numbers: the least and the largest."""
NEEDED = ("dtype", "device", "seed", "trust_remote_code", "random_init", "offline")
"""Settings that cannot be left to the model."""


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """How one model is loaded, or how an engine that serves it is asked.

    Raises:
        UsageError: a value that the setting cannot have, wherever it comes from.
    """

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
    engine: str | None = None
    api: str | None = None
    served_model: str | None = None
    weights: str | None = None
    rate: int | None = None
    requests: int | None = None
    patience: int | None = None
    reach: bool | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            expected = None if value is None and name not in NEEDED else _expected(name, value)
            if expected is not None:
                shown = shortened(repr(value))
                raise UsageError(f"{option_name(name)} {shown}: expected {expected}")
        if self.dtype not in DTYPES:
            raise UsageError(unknown("dtype", self.dtype, DTYPES))

    def changes(self) -> dict[str, Any]:
        """The values that differ from the defaults."""
        usual = vars(Settings())
        return {name: value for name, value in vars(self).items() if value != usual[name]}


def _expected(name: str, value: Any) -> str | None:
    """What a setting takes, where this value is something else."""
    if name in SWITCHES:
        return None if isinstance(value, bool) else "true or false"
    if name in NUMBERS:
        least, most = NUMBERS[name]
        whole = isinstance(value, int) and not isinstance(value, bool)
        return None if whole and least <= value <= most else f"a number from {least} to {most}"
    return None if isinstance(value, str) and value.strip() else "a text that is not empty"


def option_name(name: str) -> str:
    """The option of the command line for a setting."""
    return f"--{name.replace('_', '-')}"
