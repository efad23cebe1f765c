"""The arguments that a forward really takes, and what its output holds, however it is written.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from attncheck.model.compat import CACHE_NAMES

IDS = ("decoder_input_ids", "input_ids")
USUAL = ("input_ids", "attention_mask", "position_ids", "past_key_values", "use_cache", "labels")
"""What a forward is taken to read where nothing in sight names an argument."""
KEYWORDS = "kwargs"
UNNAMED = ("self", "args", "input")
LABELS = ("labels", "targets")
BY_KEY = (*USUAL, CACHE_NAMES[0])
"""What a forward may take out of its keywords under these names."""


def parameters_of(model: nn.Module) -> tuple[str, ...]:
    """The names of the arguments of a forward, `kwargs` last where it takes any.

    A forward with keywords has those that its code takes out of them, and those of the forwards
    that it overrides. Where these name no token ids or nothing else, the arguments are those of the
    first module inside that does.
    """
    own = _named(model.forward)
    if KEYWORDS not in own:
        return own
    kinds = (vars(kind) for kind in type(model).__mro__)
    overridden = [_named(each["forward"]) for each in kinds if "forward" in each]
    found = tuple(dict.fromkeys(name for names in (own, *overridden) for name in names))
    inside = next((names for names in _inside(model) if any(each in names for each in IDS)), own)
    if {*found} <= {*IDS, KEYWORDS}:
        return tuple(dict.fromkeys((*found[:-1], *inside)))
    return found if any(name in found for name in IDS) else inside


def names_argument(model: nn.Module, name: str) -> bool:
    """Whether a forward has an argument of this name itself, not only among its keywords."""
    return name in _named(model.forward)


def is_opaque(model: nn.Module) -> bool:
    """Whether a forward takes any keywords, and nothing in sight says which of them it reads."""
    return set(parameters_of(model)) <= {KEYWORDS}


def _inside(model: nn.Module) -> Iterator[tuple[str, ...]]:
    for module in model.modules():
        if module is not model and not isinstance(module, nn.ModuleList):
            yield _named(module.forward)


def _named(forward: Callable[..., Any]) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(forward).parameters.values()
    except (TypeError, ValueError):
        return (KEYWORDS,)
    kinds = inspect.Parameter
    names = [each.name for each in parameters if each.kind not in (kinds.VAR_KEYWORD,)]
    names = [name for name in names if name not in UNNAMED]
    if not any(each.kind is kinds.VAR_KEYWORD for each in parameters):
        return tuple(names)
    return (*dict.fromkeys((*names, *_by_key(forward))), KEYWORDS)


def _by_key(forward: Callable[..., Any]) -> list[str]:
    """The names that a forward's code takes out of its keywords: it holds them as constants. Ids
    alone say nothing of what else it reads.
    """
    code = getattr(inspect.unwrap(forward), "__code__", None)
    found = [name for name in BY_KEY if code is not None and name in code.co_consts]
    return found if set(found) - {*IDS} else []


def takes_argument(model: nn.Module, name: str) -> bool:
    """Whether a forward takes an argument of this name, or any keyword where none is in sight."""
    return name in parameters_of(model) or is_opaque(model)


def with_fields(output: Any) -> Any:
    """An output as an object with `logits`, and `loss` and a cache where it holds them: models
    written by hand return a tensor, a tuple or a dictionary.
    """
    if hasattr(output, "logits"):
        return output
    if isinstance(output, Mapping):
        return SimpleNamespace(**{"logits": None, "loss": None, **output})
    parts = (output,) if isinstance(output, Tensor) else output
    if not isinstance(parts, tuple):
        return output
    tensors = [each for each in parts if isinstance(each, Tensor)]
    others = [each for each in parts if each is not None and not isinstance(each, Tensor)]
    return SimpleNamespace(
        logits=next((each for each in tensors if each.ndim == 3), None),
        loss=next((each for each in tensors if each.ndim == 0), None),
        **{CACHE_NAMES[0]: next(iter(others), None)},
    )
