"""Reading ahead by design: documented by config or class, never measured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from attncheck.model.direction import encoder, reads_ahead, whole_row
from attncheck.model.subject import Subject

BERT = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}


def bert(kind: Any, **changes: Any) -> Any:
    return kind(transformers.BertConfig(**BERT, num_attention_heads=4, **changes))


class PlainConfig(transformers.PretrainedConfig):
    """The config of a model that somebody wrote by hand."""

    model_type = "plain-port"
    vocab_size = 32
    hidden_size = 16
    num_attention_heads = 2


class PlainPort(transformers.PreTrainedModel):
    """One attention layer, written by hand, without GenerationMixin."""

    config_class = PlainConfig

    def __init__(self, config: Any, hides: bool = True) -> None:
        super().__init__(config)
        self.hides = hides
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(config.hidden_size, config.hidden_size) for _ in range(3)
        )
        self.head = nn.Linear(config.hidden_size, config.vocab_size)

    def get_input_embeddings(self) -> Any:
        return self.wte

    def forward(self, input_ids: Any) -> Any:
        hidden_BTW = self.wte(input_ids)
        parts = (each(hidden_BTW) for each in (self.q_proj, self.k_proj, self.v_proj))
        query, key, value = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in parts)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=self.hides)
        out = self.head(hidden_BTW + mixed.transpose(1, 2).flatten(2))
        return transformers.modeling_outputs.CausalLMOutput(logits=out)


def test_a_masked_language_model_is_an_encoder() -> None:
    assert encoder(bert(transformers.BertForMaskedLM)) == (
        "BertForMaskedLM is a masked language model: it reads in both directions by design"
    )


def test_another_head_on_an_encoder_is_an_encoder_unless_its_config_says_decoder() -> None:
    kind = transformers.BertForTokenClassification
    assert encoder(bert(kind)).endswith("it reads in both directions by design")
    assert encoder(bert(kind, is_decoder=True)) == ""


def test_a_generating_class_is_a_decoder_unless_its_config_says_otherwise() -> None:
    kind = transformers.BertLMHeadModel
    assert reads_ahead(bert(kind, is_decoder=True)) == ""
    assert reads_ahead(bert(kind)) == (
        "the config says `is_decoder: false`: the model is used as an encoder"
    )


def test_only_hashing_and_prompts_depend_on_the_whole_row() -> None:
    assert "hashing" in whole_row(transformers.ReformerConfig(attn_layers=["lsh"]))
    assert whole_row(transformers.LlamaConfig()) == ""


@pytest.mark.parametrize("hides", [True, False])
def test_a_port_that_cannot_generate_is_judged_as_a_decoder(hides: bool) -> None:
    torch.manual_seed(0)
    subject = Subject.of(PlainPort(PlainConfig(), hides).double(), "port")
    assert subject.can.decodes
