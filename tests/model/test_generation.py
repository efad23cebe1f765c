"""What generate() passes to a forward, and what a forward makes of `logits_to_keep`."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from conftest import SMALL
from probing import finding

from attncheck.core.errors import CallFailed, Unsupported
from attncheck.core.verdict import Verdict
from attncheck.model.generation import Passed, greedy, kept_logits
from attncheck.model.subject import Subject
from attncheck.targets.amplify import amplify


class Wrapped(transformers.PreTrainedModel, transformers.GenerationMixin):
    """A Llama behind a forward that names an older argument for the cache."""

    config_class = transformers.LlamaConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.inner = transformers.LlamaForCausalLM(config)
        self.post_init()

    def get_input_embeddings(self) -> Any:
        return self.inner.get_input_embeddings()

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """The inner model; no keyword reaches it."""
        return self.inner(
            input_ids, attention_mask, position_ids, past_key_values, use_cache=use_cache
        )


class Reading(Wrapped):
    """The same, which also reads the newer name."""

    def forward(self, *args: Any, cache: Any = None, **named: Any) -> Any:
        """With the cache of either name."""
        return super().forward(*args, **{"past_key_values": cache, **named})


class Ignoring(Wrapped):
    """The same with an argument that it names and ignores."""

    def forward(self, *args: Any, logits_to_keep: int = 0, **named: Any) -> Any:
        """All logits, whatever is asked."""
        return super().forward(*args, **named)


def _subject(kind: type[Wrapped]) -> Subject:
    model = kind(transformers.LlamaConfig(**SMALL))
    amplify(model, 0)
    return Subject.of(model.eval(), "wrapped", dtype="float64")


def test_a_cache_that_no_argument_takes_is_said() -> None:
    passed = Passed(forward="Own.forward", positions=[(0, 1, 2), (3,)], unread_cache="cache")
    assert passed.note == (
        "the cache that generate() passes as `cache` is not read: forward takes no such argument, "
        "save among its keywords; generate() passes positions 0..2, 3"
    )
    assert (passed.cause.fault, passed.cause.module) == ("cache-drops-token", "Own.forward")


def test_a_cache_that_is_read_is_no_cause() -> None:
    passed = greedy(Subject.of(_subject(Reading).model), (5, 6, 7, 8), 2).passed
    assert passed.unread_cache == ""
    assert not passed.cause.fault


def test_generate_names_the_argument_that_is_lost() -> None:
    subject = _subject(Wrapped)
    if greedy(subject, (5, 6, 7, 8), 2).passed.unread_cache == "":
        pytest.skip("this release passes the cache under the older name")
    found = finding(subject, "generate")
    assert found.verdict is Verdict.FAIL
    plain = next(each for each in found.cases if each.name == "cache on")
    assert plain.note.startswith("the cache that generate() passes as `cache` is not read")
    assert plain.cause.module == "Wrapped.forward"


def test_logits_that_nobody_keeps_are_a_skip_and_an_argument_that_is_ignored_a_finding() -> None:
    wrapped, ignoring = _subject(Wrapped), _subject(Ignoring)
    tokens = wrapped.inputs.tokens
    with pytest.raises(Unsupported, match="forward takes no `logits_to_keep`"):
        kept_logits(wrapped, tokens, 2)
    with pytest.raises(CallFailed, match="returns logits of 24 positions for `logits_to_keep=2`"):
        kept_logits(ignoring, tokens, 2)
