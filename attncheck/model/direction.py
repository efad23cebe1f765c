"""Whether a model reads later tokens by design, as its config and its class document it.

Nothing is measured here. A model for which neither the config nor the class says so is a decoder,
and what it reads ahead is a fault.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from attncheck.model.compat import config_of, text_config

MASKED = "ForMaskedLM"
"""The end of the name of every class that is documented as a masked language model."""
MASKED_OUTPUT = "MaskedLMOutput"
"""What the forward of a masked language model returns, listed by the library or not."""


def reads_ahead(model: nn.Module) -> str:
    """Why a model reads later tokens by design; empty where neither config nor class says so."""
    config = text_config(config_of(model))
    return encoder(model) or whole_row(config) or _both_ways(config)


def encoder(model: nn.Module) -> str:
    """Why a model is an encoder that predicts the tokens which it is given; empty where nothing
    says so.
    """
    config, kind = config_of(model), type(model).__name__
    if getattr(config, "is_encoder_decoder", False) or _generates(model):
        return ""
    if kind.endswith(MASKED):
        return f"{kind} is a masked language model: it reads in both directions by design"
    masked, causal = _listed(getattr(config, "model_type", None))
    if not (masked or causal) and MASKED_OUTPUT in _names_in_forward(model):
        return f"{kind}.forward returns {MASKED_OUTPUT}: it reads in both directions by design"
    if masked and not (causal and getattr(config, "is_decoder", False)):
        return f"{kind} is an encoder in the library's lists: it reads in both directions by design"
    return ""


def whole_row(config: Any) -> str:
    """Why what a model makes of a token depends on how the whole row is given, by design."""
    if "lsh" in (getattr(config, "attn_layers", None) or ()):
        return (
            "the config has hashing attention: which tokens share a bucket depends on all of them"
        )
    if getattr(config, "prompt_types", None):
        return (
            "the config has prompt types: everything that is given at once is a prefix, "
            "read both ways"
        )
    return ""


def _both_ways(config: Any) -> str:
    if getattr(config, "causal", None) is False or getattr(config, "is_causal", None) is False:
        return "the config says that the model is not causal"
    if getattr(config, "attn_type", None) == "bi":
        return "the config says `attn_type: bi`: attention goes both ways"
    if getattr(config, "is_decoder", None) is False:
        masked, _ = _listed(getattr(config, "model_type", None))
        if masked and not getattr(config, "is_encoder_decoder", False):
            return "the config says `is_decoder: false`: the model is used as an encoder"
    return ""


def _names_in_forward(model: nn.Module) -> tuple[str, ...]:
    """The names that the code of a model's forward uses."""
    code = getattr(inspect.unwrap(type(model).forward), "__code__", None)
    return () if code is None else code.co_names


def _generates(model: nn.Module) -> bool:
    can_generate = getattr(model, "can_generate", None)
    return bool(callable(can_generate) and can_generate())


def _listed(model_type: Any) -> tuple[bool, bool]:
    """Whether the library lists a config type as a masked and as a causal language model."""
    from transformers.models.auto import modeling_auto

    tables = (
        modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    )
    masked, causal = (model_type in table for table in tables)
    return masked, causal
