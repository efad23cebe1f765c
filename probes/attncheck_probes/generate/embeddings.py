"""Embeddings instead of ids, as multimodal code and prompt tuning pass them: the model's own
embeddings of the ids mean the same.

Axes: B batch, T positions, W hidden width, N generated tokens, V vocabulary.
"""

from __future__ import annotations

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
    hooked,
    takes_argument,
    token_table,
)
from attncheck_probes.generate.answers import answers

NAME = "inputs_embeds"


def embedded(subject: Subject, name: str) -> Measurement:
    """One forward over the embeddings of the main input against one over its ids."""
    tokens, given = subject.inputs.tokens, _given(subject, subject.inputs.row)
    with torch.no_grad():
        got_BTV = subject.passes.call(tokens, use_cache=False, extra=given).logits_BTV
    want_BTV, note = (
        subject.logits(ForwardSpec(tokens)),
        "the model's own table gives the embeddings",
    )
    return _replaceable(subject, subject.compare(name, got_BTV, want_BTV, note=note))


def embedded_answer(subject: Subject, name: str, prompt: Row, new_tokens: int) -> Measurement:
    """What generate() answers to the embeddings of a prompt, against one forward over ids."""
    found = answers(subject, (prompt,), new_tokens, given=_given(subject, prompt))
    return _replaceable(subject, found.compared(subject, name))


def _replaceable(subject: Subject, case: Measurement) -> Measurement:
    if case.beyond and _other_tables(subject):
        raise Unsupported(
            f"{type(subject.model).__name__} looks ids up in a second table, "
            "which embeddings cannot replace"
        )
    return case


def _table(subject: Subject) -> Any:
    return token_table(subject.model)


def _given(subject: Subject, row: Row) -> dict[str, Any]:
    """The arguments that pass embeddings_BTW in place of ids."""
    if subject.forward_adapter.fixed:
        raise Unsupported("embeddings passed to a model with an encoder go to the encoder")
    if subject.forward_adapter.codebooks is not None:
        raise Unsupported("embeddings of the tokens alone lack the codes beside them")
    if not takes_argument(subject.model, NAME):
        raise Unsupported(f"{type(subject.model).__name__}.forward takes no `{NAME}`")
    try:
        with torch.no_grad(), subject.numerics():
            embeddings_BTW = _table(subject)(subject.passes.ids((row,)))
    except REFUSALS as error:
        raise Unsupported(f"the table of embeddings raises {first_line(error)}") from error
    return {subject.forward_adapter.ids_name: None, NAME: embeddings_BTW}


def _other_tables(subject: Subject) -> list[nn.Module]:
    """Tables beside that of the input embeddings that ids are looked up in."""
    own, tokens = _table(subject), subject.inputs.tokens
    ids_BT, found = subject.passes.ids(tokens), []

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        looked_up = args[0] if args and module is not own else None
        if isinstance(looked_up, Tensor) and torch.equal(looked_up.to(ids_BT), ids_BT):
            found.append(module)

    tables = [module for module in subject.model.modules() if isinstance(module, nn.Embedding)]
    with hooked(table.register_forward_pre_hook(note) for table in tables):
        subject.passes.replay(ForwardSpec(tokens))
    return found
