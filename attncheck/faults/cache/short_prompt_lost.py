"""What it is
    A prompt of a single token is taken for a step of decoding, and its key and value are lost.

How it looks
    Answers to one token (often only the token that begins a text) are wrong on a static cache;
    longer prompts are right.

Where it comes from
    `if input_ids.shape[1] == 1` as the sign of a step, where the filled part of the buffer should
    be asked.

What to change
    Ask the cache how many tokens it holds.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Fault, Injected, injection
from attncheck.model.cache_kinds import self_attention
from attncheck.model.caches import VALUES, key_values
from attncheck.model.compat import cached_length
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject

TRIED = 4


def inject(subject: Subject) -> Injected:
    """Empty the first slot of a static cache that holds one token.

    Raises:
        CannotInject: the model takes no static cache, or keeps no keys and values in it.
    """
    row = subject.inputs.row[:TRIED]
    if not key_values(subject.passes.cache(ForwardSpec((row,), cache_kind="static"))):
        raise CannotInject("a static cache of this model holds no keys and values")

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        cache = injection.cache_argument(subject, call)
        static = isinstance(self_attention(cache), transformers.StaticCache)
        if static and cached_length(cache) == 1:
            with torch.no_grad():
                for each in key_values(cache):
                    if each.name in VALUES:
                        each.tensor[:, :, 0].zero_()
        return call

    return injection.at_arguments(subject, edit)


FAULT = Fault(name="short-prompt-lost", inject=inject, on_cache_only=True)
