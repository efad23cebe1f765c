"""A small model with weights drawn here, from nothing but a config: a config class by its type, a
config.json, a hub id.

Weights are amplified, so that a fault in attention shows in the logits.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attncheck.core.errors import TargetError, unknown
from attncheck.core.settings import Settings
from attncheck.model import compat
from attncheck.model.forward import adapted_forward
from attncheck.targets.amplify import amplify
from attncheck.targets.files import read_config
from attncheck.targets.shrink.rules import LAYERS, Wanted
from attncheck.targets.shrink.shrink import shrink
from attncheck.targets.shrink.thresholds import with_thresholds

HEADS: Mapping[str, tuple[str, str]] = {
    "causal": ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    "seq2seq": ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),
    "masked": ("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"),
    "multimodal": compat.multimodal_classes(),
}
"""The kinds of model in the order in which a bare type is looked up: auto class, and its table of
class names by type.
"""
TRIED = tuple(range(11, 19))
DECODER_PARTS: Mapping[str, str] = {
    "musicgen": "MusicgenDecoderConfig",
    "musicgen_melody": "MusicgenMelodyDecoderConfig",
}
"""Types under which the causal table names a class that wants the config of the decoder alone."""


NOT_IN_TABLES: Mapping[str, Mapping[str, str]] = {
    "multimodal": {"moshi": "MoshiForConditionalGeneration"},
}
"""Classes by type that no table of the library names."""


def types_of(head: str) -> list[str]:
    """The config types that have a model of this kind in this release."""
    return sorted(_classes(head))


def _classes(head: str) -> dict[str, str]:
    """The name of the class of each type; of several the first."""
    table = {**getattr(modeling_auto, HEADS[head][1], {}), **NOT_IN_TABLES.get(head, {})}
    return {name: each if isinstance(each, str) else each[0] for name, each in table.items()}


def matching(pattern: str) -> list[str]:
    """The targets behind a glob: `config:*` the causal models, `config:seq2seq/*`,
    `config:masked/*` and `config:multimodal/*` the others.
    """
    head, _, glob = pattern.removeprefix("config:").rpartition("/")
    if head and head not in HEADS:
        raise TargetError(f"{pattern}: {unknown('kind of model', head, HEADS)}")
    prefix = f"config:{head}/" if head else "config:"
    found = [
        f"{prefix}{name}" for name in types_of(head or "causal") if fnmatch.fnmatchcase(name, glob)
    ]
    if not found:
        raise TargetError(f"{pattern}: no config type of this release matches")
    return found


def build(where: str, settings: Settings) -> Any:
    """The model behind `config:WHERE`: a type, `kind/type`, or the path of a config.json.

    Raises:
        TargetError: no such type or file, or the library cannot build the model; the reason is
        given.
    """
    path = Path(where)
    head, _, name = where.rpartition("/")
    known = name in types_of(head) if head in HEADS else name in _all_types() and not head
    # a folder that is called like a type is not that type's config
    if not known and (path.suffix == ".json" or path.exists()):
        return from_config(_read(path), settings)
    return from_type(name, head or _head_of(name), settings)


def _all_types() -> set[str]:
    return {name for head in HEADS for name in types_of(head)}


def _head_of(name: str) -> str:
    for head in HEADS:
        if name in types_of(head):
            return head
    raise TargetError(unknown("config type", name, _all_types()))


def from_type(name: str, head: str, settings: Settings) -> Any:
    """A small model from the default config of a type; windows that the default leaves off are
    switched on.
    """
    if head not in HEADS:
        raise TargetError(unknown("kind of model", head, HEADS))
    if name not in types_of(head):
        raise TargetError(unknown(f"config type of a {head} model", name, types_of(head)))
    try:
        return _explored(name, head, settings, explore=True)
    except Exception:
        return _explored(name, head, settings, explore=False)


def _explored(name: str, head: str, settings: Settings, *, explore: bool) -> Any:
    """Build and try: classes accept fields that their forward does not know."""
    part = DECODER_PARTS.get(name) if head == "causal" else None
    kind = getattr(transformers, part) if part else CONFIG_MAPPING[name]
    config = shrink(kind(), _wanted(settings), explore=explore)
    if head == "causal":
        _as_decoder(config)
    class_name = _classes(head)[name]
    model = with_thresholds(
        config, lambda each: _drawn(each, HEADS[head][0], settings, class_name=class_name)
    )
    with torch.no_grad():
        adapted_forward(model.eval(), TRIED).call(torch.tensor([TRIED]), use_cache=False)
    return model


def from_config(config: Any, settings: Settings) -> Any:
    """A small model of a real config: what it declares stays, its sizes shrink."""
    auto = auto_class_name(config)
    small = shrink(config, _wanted(settings))
    return with_thresholds(small, lambda each: _drawn(each, auto, settings))


def auto_class_name(config: Any) -> str:
    """The auto class that fits a config: encoder-decoder, masked language model, else causal
    language model; one for pictures and sound where no causal one knows the config.
    """
    architectures = getattr(config, "architectures", None) or []
    if getattr(config, "is_encoder_decoder", False):
        return HEADS["seq2seq"][0]
    if any(name.endswith("ForMaskedLM") for name in architectures):
        return HEADS["masked"][0]
    causal, multimodal = (
        getattr(transformers, HEADS[head][0]) for head in ("causal", "multimodal")
    )
    known = type(config) in causal._model_mapping or type(config) not in multimodal._model_mapping
    return HEADS["causal" if known else "multimodal"][0]


def _wanted(settings: Settings) -> Wanted:
    return Wanted(layers=settings.layers or LAYERS)


def _read(path: Path) -> Any:
    path = path / "config.json" if path.is_dir() else path
    fields = read_config(path)
    return CONFIG_MAPPING[fields["model_type"]].from_dict(fields)


def _as_decoder(config: Any) -> None:
    """Encoder classes become decoders, decoders of encoder-decoder models stand alone."""
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    if getattr(config, "is_encoder_decoder", False):
        config.is_encoder_decoder = False


def _drawn(config: Any, auto: str, settings: Settings, class_name: str = "") -> Any:
    torch.manual_seed(settings.seed)
    if hasattr(config, "use_cache"):
        config.use_cache = True
    extra = {"attn_implementation": settings.attn} if settings.attn else {}
    kind = getattr(transformers, class_name, None)
    if kind is not None and type(config) not in getattr(transformers, auto)._model_mapping:
        model = kind._from_config(config, **extra)
    else:
        model = getattr(transformers, auto).from_config(
            config, **compat.experts_argument("eager"), **extra
        )
    amplify(model, settings.seed)
    return model
