"""Embeddings handed in instead of ids, as multimodal code and prompt tuning do: what the model's
own table gives means the same.

Axes: B batch, T positions, W hidden width, N generated tokens, V vocabulary.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.probing import (
    REFUSALS,
    ForwardSpec,
    Measurement,
    Row,
    Subject,
    Unsupported,
    first_line,
    generation,
    hooked,
    padded_ids,
)

NAME = "inputs_embeds"


def embedded(subject: Subject, name: str) -> Measurement:
    """One case: one forward over the embeddings of the main input against one over its ids.

    Raises:
        Unsupported: forward takes no embeddings, or ids are needed beside them.
    """
    tokens, given = subject.inputs.tokens, _given(subject, subject.inputs.row)
    with torch.no_grad():
        got_BTV = subject.passes.call(tokens, use_cache=False, extra=given).logits_BTV
    note = "the embeddings are what the model's own table gives"
    return replaced(
        subject, subject.compare(name, got_BTV, subject.logits(ForwardSpec(tokens)), note=note)
    )


def embedded_answer(subject: Subject, prompt: Row, new_tokens: int) -> tuple[Row, Tensor]:
    """What generate() answers to the embeddings of a prompt, and logits_BNV behind it.

    Raises:
        Unsupported: generate() takes no embeddings.
    """
    given, (ids_BT, mask_BT) = (
        _given(subject, prompt),
        padded_ids(subject, (prompt,), len(prompt)),
    )
    made = generation.run(subject, ids_BT, mask_BT, new_tokens, given=given)
    return tuple(map(int, made.sequences[0, -new_tokens:])), torch.stack(made.logits, 1)


def replaced(subject: Subject, case: Measurement) -> Measurement:
    """The case, where embeddings can replace the ids.

    Raises:
        Unsupported: it fails, and the ids are looked up in a second table as well.
    """
    if case.beyond and _other_tables(subject):
        raise Unsupported(
            f"{type(subject.model).__name__} looks ids up in a second table, which embeddings cannot replace"
        )
    return case


def _given(subject: Subject, row: Row) -> dict[str, Any]:
    """The arguments that hand over embeddings_BTW in place of ids."""
    if subject.forward_adapter.fixed:
        raise Unsupported("embeddings handed to a model with an encoder go to the encoder")
    if NAME not in inspect.signature(subject.model.forward).parameters:
        raise Unsupported(f"{type(subject.model).__name__}.forward takes no `{NAME}`")
    try:
        with torch.no_grad(), subject.numerics():
            embeddings_BTW = subject.model.get_input_embeddings()(subject.passes.ids((row,)))  # type: ignore[operator]
    except REFUSALS as error:
        raise Unsupported(f"the table of embeddings raises {first_line(error)}") from error
    return {subject.forward_adapter.ids_name: None, NAME: embeddings_BTW}


def _other_tables(subject: Subject) -> list[nn.Module]:
    """Tables beside that of the input embeddings that ids are looked up in."""
    own, tokens = subject.model.get_input_embeddings(), subject.inputs.tokens  # type: ignore[operator]
    ids_BT, found = subject.passes.ids(tokens), []

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        if (
            module is not own
            and args
            and isinstance(args[0], Tensor)
            and torch.equal(args[0].to(ids_BT), ids_BT)
        ):
            found.append(module)

    tables = [module for module in subject.model.modules() if isinstance(module, nn.Embedding)]
    with hooked(table.register_forward_pre_hook(note) for table in tables):
        subject.passes.replay(ForwardSpec(tokens))
    return found
