"""The arguments of a forward are found however it is written, and so is what it returns."""

from __future__ import annotations

from typing import Any

import torch
from conftest import tiny_llama
from ports.language_models import Plain, Remembering, port
from ports.plain_modules import Keywords, Nano, NanoWhole, Presents, Wrapped, module
from torch import Tensor, nn

from attncheck.core.settings import Settings
from attncheck.model.embeddings import token_table
from attncheck.model.forward import ForwardAdapter
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.loss import home_of_loss, own_shift
from attncheck.model.signature import (
    is_opaque,
    parameters_of,
    takes_argument,
    with_fields,
)
from attncheck.model.subject import Subject


class Opaque(nn.Module):
    def forward(self, **kwargs: Any) -> Tensor:
        return kwargs["input_ids"][..., None].float()


def test_an_overridden_forward_names_the_keywords() -> None:
    for kind in (Keywords, Remembering):
        names = parameters_of(port(kind, False))
        assert {"input_ids", "attention_mask", "position_ids", "cache", "use_cache"} <= set(names)


def test_a_module_inside_names_the_arguments_of_a_wrapper() -> None:
    assert "position_ids" in parameters_of(module(Wrapped, False))


def test_a_forward_that_names_its_ids_gets_no_other_names() -> None:
    assert parameters_of(module(Presents, False)) == ("input_ids", "past_key_values", "use_cache")
    assert "position_ids" in parameters_of(tiny_llama())


class ByKey(nn.Module):
    def forward(self, input_ids: Tensor, **kwargs: Any) -> Tensor:
        kept = kwargs.get("past_key_values")
        return input_ids[..., None].float() if kept is None else kwargs["attention_mask"]


class Passing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_llama()

    def forward(self, input_ids: Tensor, **kwargs: Any) -> Tensor:
        return self.inner(input_ids, **kwargs).logits


def test_names_that_a_forward_takes_out_of_its_keywords_are_its_arguments() -> None:
    adapter = ForwardAdapter(ByKey())
    assert (adapter.cache_name, adapter.mask_name) == ("past_key_values", "attention_mask")
    assert adapter.positions_name is None
    assert ForwardAdapter(Passing()).positions_name == "position_ids"


def test_nothing_in_sight_names_an_argument() -> None:
    model = Opaque()
    assert is_opaque(model)
    assert not is_opaque(tiny_llama())
    assert takes_argument(model, "logits_to_keep")
    adapter = ForwardAdapter(model)
    assert (adapter.ids_name, adapter.mask_name) == ("input_ids", "attention_mask")


def test_outputs_of_every_form_have_logits_loss_and_cache() -> None:
    logits_BTV, loss, cache = torch.zeros(1, 2, 3), torch.tensor(1.0), ((torch.zeros(1),),)
    for output in (
        logits_BTV,
        (logits_BTV, loss),
        (loss, logits_BTV, cache),
        {"logits": logits_BTV},
    ):
        assert with_fields(output).logits is logits_BTV
    assert with_fields((logits_BTV, None)).loss is None
    assert with_fields((loss, logits_BTV)).loss is loss
    adapter = ForwardAdapter(module(Presents, False))
    assert adapter.call(torch.tensor([[1, 2]]), use_cache=True).cache[0][0].shape == (1, 2, 2, 8)


def test_logits_of_the_last_token_alone_become_those_of_all() -> None:
    """nanoGPT answers with the last token's logits where it gets no targets."""
    last, whole = (Subject.of(module(kind, False), dtype="float64") for kind in (Nano, NanoWhole))
    spec = ForwardSpec(last.inputs.tokens)
    assert torch.equal(last.logits(spec), whole.logits(spec))
    assert own_shift(last) == 0


def test_an_embedding_by_any_name_is_the_token_table() -> None:
    model: Any = port(Plain, False)
    assert token_table(model) is model.wte
    assert token_table(module(Nano, False)).num_embeddings == 64
    assert Subject.of(model, settings=Settings()).facts.vocab == 64
    assert token_table(nn.Linear(2, 2)) is None


def test_the_loss_is_at_home_where_it_is_computed() -> None:
    assert home_of_loss(module(NanoWhole, False)) == "NanoWhole.forward"
    assert home_of_loss(tiny_llama()) == "LlamaForCausalLM.loss_function"
