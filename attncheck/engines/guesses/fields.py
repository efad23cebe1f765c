"""Fields of the config that an engine does not read, or reads as something else.

Nothing is known here of any architecture: every field that holds a number, a switch or the name of
an activation is set to what an engine could take for it, and the model is built again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from attncheck.core.errors import Unsupported
from attncheck.engines.guesses.guess import EngineGuess
from attncheck.engines.twin import Predicts, Twin
from attncheck.model.compat import text_config

ROPE = ("rope_parameters", "rope_scaling")
BASE = "rope_theta"
BASES = (10_000.0, 500_000.0, 1_000_000.0, 100_000.0)
SHARE = "partial_rotary_factor"
ACTIVATIONS = ("gelu", "gelu_pytorch_tanh", "gelu_new", "silu", "relu")
EPSILONS = (1e-5, 1e-6)
NAMES = (
    (re.compile(r"rope_theta|rotary_emb_base"), "rope-base"),
    (re.compile(r"partial_rotary_factor|rotary_pct|rotary_dim"), "rope-share"),
    (re.compile(r"rope_.*|factor|.*_factor"), "rope-scaling"),
    (re.compile(r".*act.*"), "activation"),
    (re.compile(r".*softcap.*"), "softcap-missing"),
    (re.compile(r".*sliding.*|.*window.*"), "window-ignored"),
    (re.compile(r".*eps.*"), "norm-epsilon"),
    (re.compile(r"query_pre_attn_scalar|attention_multiplier|scale_attn.*"), "softmax-scale"),
)
NOT_READ = re.compile(
    r".*(token_id|_size|dropout|drop|initializer|use_cache|output_.*|return_dict|torchscript|"
    r"tie_word_embeddings|is_encoder_decoder|is_decoder|chunk_size|loss_coef|jitter).*"
)
ADVICE = (
    "The engine does not read this field as transformers does. Folders saved by transformers 5 "
    "hold rotary fields in `rope_parameters` only: give older engines the old keys of config.json "
    "too, or the engine's own option."
)


def field_guesses(twin: Twin) -> Iterator[EngineGuess]:
    """One guess for each field and each value that an engine could take for it."""
    config = text_config(twin.subject.model.config)
    usual = _usual(config)
    for name, value, put in _fields(config):
        for other in dict.fromkeys(_others(name, value, usual.get(name), config)):
            if other != value and not (other is None and value in (False, 0)):
                yield field_guess(twin, name, value, other, put)


def field_guess(
    twin: Twin, name: str, value: Any, other: Any, put: Callable[[Any, Any], None]
) -> EngineGuess:
    """The guess that one field is read as another value."""
    return EngineGuess(
        fault=_fault_of(name),
        parameter=f"{name} {_shown(other)} where the config says {_shown(value)}",
        made=partial(_prediction, twin, put, other),
        advice=ADVICE,
    )


def rope_bases(twin: Twin) -> list[tuple[str, Any, Callable[[Any, Any], None]]]:
    """The fields that hold a rotary base: name, value, and what puts another one in its place."""
    config = text_config(twin.subject.model.config)
    return [each for each in _fields(config) if _fault_of(each[0]) == "rope-base"]


def _prediction(twin: Twin, put: Callable[[Any, Any], None], other: Any) -> Predicts:
    return twin.rebuilt(lambda config: put(text_config(config), other))


def _usual(config: Any) -> dict[str, Any]:
    """What the class takes by default, rotary fields included."""
    try:
        made = type(config)()
    except Exception as error:
        raise Unsupported(f"the config class has no defaults: {error}") from error
    found = dict(vars(made))
    for name in ROPE:
        table = getattr(made, name, None)
        if isinstance(table, dict):
            found |= {key: each for key, each in table.items() if not isinstance(each, dict)}
    return found


def _fields(config: Any) -> Iterator[tuple[str, Any, Callable[[Any, Any], None]]]:
    """Each field that may matter: name, value, and what puts another value in its place."""
    seen = set()
    for home in ROPE:
        table = getattr(config, home, None)
        for path, name, value in _entries(table, (home,)):
            if name not in seen and isinstance(value, (int, float, str)):
                seen.add(name)
                yield name, value, partial(_put_everywhere, home, name)
            del path
    for name, value in vars(config).items():
        if name in seen or name.startswith("_") or NOT_READ.fullmatch(name):
            continue
        plain = isinstance(value, (bool, float)) or (isinstance(value, str) and "act" in name)
        if plain or (isinstance(value, int) and _fault_of(name) != "field-ignored"):
            yield name, value, partial(_put, name)


def _entries(table: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    if not isinstance(table, dict):
        return
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _entries(value, (*path, key))
        else:
            yield path, key, value


def _put(name: str, config: Any, other: Any) -> None:
    setattr(config, name, other)
    if "sliding" in name and other is None and getattr(config, "layer_types", None):
        config.layer_types = ["full_attention" for _ in config.layer_types]


def _put_everywhere(home: str, name: str, config: Any, other: Any) -> None:
    """Put a value into the rotary table, in every part of it that has the field."""

    def changed(table: dict[str, Any]) -> dict[str, Any]:
        found = {
            key: changed(each) if isinstance(each, dict) else each for key, each in table.items()
        }
        if name in found:
            found[name] = other
        return found

    setattr(config, home, changed(getattr(config, home)))


def _fault_of(name: str) -> str:
    return next((fault for pattern, fault in NAMES if pattern.fullmatch(name)), "field-ignored")


def _others(name: str, value: Any, usual: Any, config: Any) -> list[Any]:
    """What an engine could take for a field: the default of its class, the usual values of others,
    or nothing.
    """
    fault = _fault_of(name)
    if fault == "rope-base":
        return [*BASES, *([usual] if isinstance(usual, float) else [])]
    if fault == "rope-share":
        return [1.0, 0.5, 0.25, 0.4, *([usual] if isinstance(usual, float) else [])]
    if fault == "activation":
        return list(ACTIVATIONS)
    if fault == "norm-epsilon":
        return [*EPSILONS, usual]
    if fault == "softcap-missing":
        return [None]
    if fault == "window-ignored":
        return [None, value - 1, value + 1] if _is_number(value) and value > 1 else [not value]
    if fault == "rope-scaling":
        return ["default"] if isinstance(value, str) else [1.0, usual]
    if name == "query_pre_attn_scalar":
        return [getattr(config, "head_dim", None) or usual, usual]
    if isinstance(value, bool):
        return [not value]
    return [1.0, 0.0, usual]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    if value is None:
        return "left out"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
