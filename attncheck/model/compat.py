"""Where transformers moved an API between 4.48 and today; the only module that asks for its
version.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

import transformers
from packaging.version import Version
from transformers.models.auto import modeling_auto

VERSION = Version(transformers.__version__)
CACHE_NAMES = ("cache", "past_key_values", "cache_params", "past_buckets_states", "state", "mems")


def dtype_argument(dtype: object) -> dict[str, Any]:
    """The keyword under which `from_pretrained` takes a dtype: `torch_dtype` before 4.56."""
    return {"dtype" if Version("4.56") <= VERSION else "torch_dtype": dtype}


def tensor_parallel_argument(size: int) -> dict[str, Any]:
    """The keyword that shards a model by its own plan: `tp_plan` before 5.10, a configuration of
    the whole since.
    """
    try:
        from transformers.distributed import DistributedConfig

        return {"distributed_config": DistributedConfig(tp_size=size, tp_plan="auto")}
    except (ImportError, TypeError):
        return (
            {"tp_plan": "auto", "tp_size": size}
            if Version("4.54") <= VERSION
            else {"tp_plan": "auto"}
        )


def experts_argument(name: str) -> dict[str, Any]:
    """The keyword that chooses how expert layers are computed, where this release has one (5.0)."""
    return {"experts_implementation": name} if Version("5.0") <= VERSION else {}


def multimodal_classes() -> tuple[str, str]:
    """The auto class of models that read pictures or sound, and its table: of pictures alone before
    5.0.
    """
    for name in ("MULTIMODAL_LM", "IMAGE_TEXT_TO_TEXT"):
        if hasattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES"):
            break
    auto = {"MULTIMODAL_LM": "AutoModelForMultimodalLM"}.get(name, "AutoModelForImageTextToText")
    return auto, f"MODEL_FOR_{name}_MAPPING_NAMES"


def nested_config(config: Any) -> Any:
    """A nested config in the form that the constructor of the outer one takes: a dictionary before
    5.0.
    """
    return config if Version("5.0") <= VERSION else config.to_dict()


def cache_of(output: Any) -> Any:
    """The cache that a forward returned, under whichever name this release gives it; None without
    one.
    """
    found = (getattr(output, name, None) for name in CACHE_NAMES)
    return next((cache for cache in found if cache is not None), None)


def pretrained(model: Any) -> Any:
    """The module that has the config: the model, or the one inside of a plain module around it."""
    if getattr(model, "config", None) is not None or not hasattr(model, "modules"):
        return model
    inside = (each for each in model.modules() if hasattr(_config(each), "get_text_config"))
    return next(inside, model)


def config_of(model: Any) -> Any:
    """The config of a model, or of the one inside of a plain module around it; None without any."""
    return getattr(pretrained(model), "config", None)


def text_config(config: Any) -> Any:
    """The part of a config that describes the text decoder."""
    return readable(
        config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    )


def config_fields(config: Any) -> dict[str, Any]:
    """The fields of a config by name; none of a model that has no config."""
    return dict(vars(config)) if hasattr(config, "__dict__") else {}


def readable(config: Any) -> Any:
    """The same config, whose fields can be read even where layers differ: newer releases raise
    unless it is allowed.
    """
    if getattr(config, "is_heterogeneous", False):
        config.allow_global_per_layer_attribute_access = True
    return config


def quiet() -> None:
    """Silence progress bars and advice of the library; attncheck reports what matters itself."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def loudness() -> tuple[int, bool]:
    """The library's log level, and whether it shows progress bars."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    return transformers.utils.logging.get_verbosity(), bool(shown)


def set_loudness(level: int, bars: bool) -> None:
    """Undo `quiet`."""
    transformers.utils.logging.set_verbosity(level)
    if bars:
        transformers.utils.logging.enable_progress_bar()
    else:
        transformers.utils.logging.disable_progress_bar()


def cached_length(cache: Any) -> int:
    """How many tokens a cache has seen; 0 for none, and for caches that do not count."""
    if cache is None:
        return 0
    if hasattr(cache, "get_seq_length"):
        try:
            return int(cache.get_seq_length() or 0)
        except ValueError:
            return 0  # a cache of recurrent states alone refuses to say
    first = cache[0] if isinstance(cache, (tuple, list)) and cache else None
    return int(first[0].shape[-2]) if isinstance(first, (tuple, list)) else 0


def recognises_packing(model: Any) -> bool:
    """Whether this model's masks are built by the library's mask builder, in a release that
    recognises packed rows (4.54).
    """
    try:
        from transformers import masking_utils
    except ImportError:
        return False
    if not hasattr(masking_utils, "find_packed_sequence_indices"):
        return False
    homes = {type(module).__module__ for module in model.modules()}
    builders = ("create_causal_mask", "create_masks_for_generate")
    return any(hasattr(sys.modules.get(home), builder) for home in homes for builder in builders)


def plain_experts(model: Any) -> None:
    """Compute expert layers one by one, where this release can choose: the fused kernels take no
    float64.
    """
    setter = getattr(pretrained(model), "set_experts_implementation", None)
    if setter is not None:
        with contextlib.suppress(ValueError, KeyError):
            setter("eager")


@contextlib.contextmanager
def static_experts(model: Any) -> Iterator[None]:
    """While active, every expert layer runs the same operators for all tokens, where this release
    can choose so.
    """
    choices = experts_of(model)
    setter = getattr(pretrained(model), "set_experts_implementation", None)
    try:
        if setter is not None:
            with contextlib.suppress(ValueError, KeyError):
                setter("batched_mm")
        yield
    finally:
        set_experts(choices)


EXPERTS = "_experts_implementation_internal"


def experts_of(model: Any) -> list[tuple[Any, Any]]:
    """Each config of a model that chooses how experts are computed, with its choice."""
    configs = {id(config): config for config in map(_config, model.modules()) if config is not None}
    return [(each, vars(each)[EXPERTS]) for each in configs.values() if EXPERTS in vars(each)]


def _config(module: Any) -> Any:
    config = getattr(module, "config", None)
    return config if hasattr(config, "__dict__") else None


def set_experts(choices: list[tuple[Any, Any]]) -> None:
    """Undo `plain_experts`; written as it was, since the library's own setter checks again."""
    for config, choice in choices:
        setattr(config, EXPERTS, choice)
