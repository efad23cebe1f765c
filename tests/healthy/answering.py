"""Generation configs, and tokenizers, of every kind."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from healthy.kinds import kind, tiny_llama


def generating(model: Any, **options: Any) -> Any:
    model.generation_config = transformers.GenerationConfig(**options)
    return model


ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def ended(**changes: Any) -> Any:
    return tiny_llama(**{**ENDS, **changes})


@kind(fast=True)
def generates_by_sampling() -> Any:
    return generating(ended(), **ENDS, do_sample=True, temperature=0.6, top_p=0.9, top_k=8)


@kind()
def generates_with_beams() -> Any:
    return generating(ended(), **ENDS, num_beams=4, length_penalty=0.7, early_stopping=True)


@kind()
def generates_with_penalties() -> Any:
    return generating(ended(), **ENDS, repetition_penalty=1.3, no_repeat_ngram_size=2)


@kind()
def generates_at_most_30_in_all() -> Any:
    return generating(ended(), **ENDS, max_length=30)


@kind()
def generates_at_most_12_in_all() -> Any:
    return generating(ended(), **ENDS, max_length=12)


@kind()
def generates_one_token() -> Any:
    return generating(ended(), **ENDS, max_new_tokens=1)


@kind()
def generates_without_cache() -> Any:
    return generating(ended(), **ENDS, use_cache=False)


@kind()
def config_without_cache() -> Any:
    return ended(use_cache=False)


@kind(fast=True)
def generates_with_a_static_cache() -> Any:
    return generating(ended(), **ENDS, cache_implementation="static")


@kind()
def many_ends() -> Any:
    return generating(
        ended(eos_token_id=[2, 5, 9]), pad_token_id=0, bos_token_id=1, eos_token_id=[2, 5, 9]
    )


@kind()
def no_end_and_no_padding() -> Any:
    return generating(tiny_llama(pad_token_id=None, bos_token_id=None, eos_token_id=None))


@kind("bfloat16", fast=True)
def padding_is_the_end() -> Any:
    return generating(ended(pad_token_id=2), pad_token_id=2, bos_token_id=1, eos_token_id=2)


@kind()
def suppresses_tokens() -> Any:
    return generating(
        ended(), **ENDS, suppress_tokens=[4, 5, 6], begin_suppress_tokens=[7], min_new_tokens=3
    )


@kind()
def forces_tokens() -> Any:
    return generating(ended(), **ENDS, forced_bos_token_id=8, forced_eos_token_id=2)


@kind()
def returns_dictionaries() -> Any:
    return generating(
        ended(), **ENDS, return_dict_in_generate=True, output_scores=True, output_logits=True
    )


@kind()
def returns_several_rows() -> Any:
    return generating(ended(), **ENDS, do_sample=True, num_return_sequences=3)


@kind(fast=True)
def config_outputs_attentions() -> Any:
    model = ended(attn_implementation="eager")
    model.config.output_attentions = True
    model.config.output_hidden_states = True
    return model


@kind()
def prefills_in_chunks() -> Any:
    return generating(ended(), **ENDS, prefill_chunk_size=4)


class Words:
    """A tokenizer of the smallest kind; `give` makes ids of characters."""

    all_special_ids = (0, 1, 2)
    eos_token_id = 2
    pad_token_id = 0

    def give(self, text: str) -> list[int]:
        return [3 + ord(sign) % 61 for sign in text]

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": self.give(text)}

    def decode(self, ids: Any, **options: Any) -> str:
        return " ".join(str(int(each)) for each in torch.as_tensor(ids).flatten())


class OneUnknown(Words):
    """Knows no word: every one is the same id, which is not among the special ones."""

    def give(self, text: str) -> list[int]:
        return [3] * len(text.split())


class AllSpecial(Words):
    """Knows no word: every one is a special id."""

    def give(self, text: str) -> list[int]:
        return [0] * len(text.split())


class Few(Words):
    """Makes the whole text four ids."""

    def give(self, text: str) -> list[int]:
        return [5, 6, 7, 8]


class TwoInTurn(Words):
    """Makes every text the same two ids in turn."""

    def give(self, text: str) -> list[int]:
        return [5, 6] * len(text.split())


class Starts(Words):
    """Puts a start in front although nobody asked."""

    def give(self, text: str) -> list[int]:
        return [1, *super().give(text)]


class Beyond(Words):
    """Has tokens that the model has no row for."""

    def give(self, text: str) -> list[int]:
        return [3 + ord(sign) for sign in text]


@kind()
def tokenizer_of_characters() -> Any:
    return ended(), Words()


@kind(fast=True)
def tokenizer_that_knows_nothing() -> Any:
    return ended(), OneUnknown()


@kind(fast=True)
def tokenizer_of_special_ids() -> Any:
    return ended(), AllSpecial()


@kind()
def tokenizer_of_few_ids() -> Any:
    return ended(), Few()


@kind()
def tokenizer_of_two_ids() -> Any:
    return ended(), TwoInTurn()


@kind()
def tokenizer_that_starts() -> Any:
    return ended(), Starts()


@kind()
def tokenizer_beyond_the_vocabulary() -> Any:
    return ended(), Beyond()
