"""Asking generate(): what it produces, the logits behind each token, and the positions that it
hands to the model.

Axes: B batch, T positions, N generated tokens, V vocabulary.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from transformers import GenerationConfig

from attncheck.core.errors import Unsupported, first_line
from attncheck.model.encoder_inputs import for_rows
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Row, Tokens
from attncheck.model.passes import REFUSALS
from attncheck.model.subject import Subject
from attncheck.model.wrapped_forward import edited
from attncheck.numerics.divergence import beyond

KEEP = "logits_to_keep"


@final
@dataclass(frozen=True)
class Generated:
    """The tokens of one greedy generation, logits_BNV behind them, and the positions of each
    forward as handed over.
    """

    tokens: Row
    logits_BNV: Tensor
    positions: tuple[Row | None, ...]
    prompt: Row = ()
    padding: int = 0

    @property
    def positions_note(self) -> str:
        """What generate() gave the model as positions, in words."""
        given = [row for row in self.positions if row is not None]
        if not given:
            return "generate() hands over no positions"
        first = given[0]
        shown = f"{first[0]}..{first[-1]}" if len(first) > 1 else f"{first[0]}"
        return f"generate() hands over positions {shown}" + "".join(
            f", {row[-1]}" for row in given[1:]
        )


def greedy(
    subject: Subject, prompt: Row, new_tokens: int, padding: int = 0, **options: Any
) -> Generated:
    """Generate greedily from one prompt, left-padded by `padding` tokens.

    Raises:
        Unsupported: the model has no generate(), takes no 2D mask where padding is asked for, or
        generate() raises.
    """
    if padding:
        subject.can.mask_2d.require()
    ids_BT, mask_BT = padded(subject, (prompt,), len(prompt) + padding)
    seen: list[Row | None] = []
    made = run(subject, ids_BT, mask_BT, new_tokens, seen, **options)
    tokens = tuple(int(token) for token in made.sequences[0, ids_BT.shape[1] :])
    fed = (_pad_id(subject),) * padding + prompt
    return Generated(tokens, torch.stack(made.logits, 1), tuple(seen), fed, padding)


def padded(subject: Subject, rows: Tokens, length: int) -> tuple[Tensor, Tensor]:
    """(ids_BT, mask_BT) of rows padded on the left to one length."""
    ids_BT = subject.passes.ids(
        tuple((_pad_id(subject),) * (length - len(row)) + row for row in rows)
    )
    mask_BT = torch.tensor(
        [[0] * (length - len(row)) + [1] * len(row) for row in rows], device=ids_BT.device
    )
    return ids_BT, mask_BT


def run(
    subject: Subject,
    ids_BT: Tensor,
    mask_BT: Tensor,
    new_tokens: int,
    seen: list[Row | None] | None = None,
    given: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """The whole output of one generate(); `seen` collects positions, `given` holds arguments beside
    ids and mask.

    Raises:
        Unsupported: the model has no generate(), or generate() raises.
    """
    generate: Callable[..., Any] | None = getattr(subject.model, "generate", None)
    if generate is None or not _can_generate(subject.model):
        raise Unsupported(f"{type(subject.model).__name__} has no generate()")
    noted: list[Row | None] = [] if seen is None else seen
    spec = {
        subject.forward_adapter.ids_name: ids_BT,
        subject.forward_adapter.mask_name or "attention_mask": mask_BT,
        **_encoder(subject, ids_BT),
    }
    settings = _settings(subject, ids_BT, new_tokens, options)
    watching = edited(subject.model, lambda call: _noted(subject, call, noted))
    with torch.no_grad(), subject.numerics(), watching, _own_defaults(subject.model, settings):
        try:
            return generate(**{**spec, **(given or {})}, generation_config=settings)
        except REFUSALS as error:
            raise Unsupported(f"generate() raises {first_line(error)}") from error


@contextlib.contextmanager
def _own_defaults(model: Any, settings: GenerationConfig) -> Iterator[None]:
    """What is left unset must not be filled from the model's defaults: a forced end token is no
    argmax.
    """
    before = getattr(model, "generation_config", None)
    model.generation_config = settings
    try:
        yield
    finally:
        model.generation_config = before


def answer_of(made: Any, start: int) -> Row:
    """The first row's tokens from position `start` on."""
    return tuple(map(int, made.sequences[0, start:]))


def padded_encoder(subject: Subject, padding: int) -> dict[str, Tensor]:
    """The encoder's ids with `padding` more tokens behind them, and the mask that hides those.

    Raises:
        Unsupported: there is no encoder that reads ids.
    """
    ids_BS = subject.forward_adapter.fixed.get("input_ids")
    if not isinstance(ids_BS, Tensor):
        raise Unsupported("the model has no encoder that reads ids")
    tail_BS = torch.full((1, padding), subject.inputs.pool[0], device=ids_BS.device)
    mask_BS = torch.cat([torch.ones_like(ids_BS), torch.zeros_like(tail_BS)], 1)
    wider = {"input_ids": torch.cat([ids_BS, tail_BS], 1), "attention_mask": mask_BS}
    return {name: value.to(subject.device) for name, value in wider.items()}


def kept_logits(subject: Subject, tokens: Tokens, keep: int) -> Tensor:
    """logits_BNV of the last `keep` positions, asked for with `logits_to_keep`.

    Raises:
        Unsupported: forward takes no such argument.
    """
    if KEEP not in inspect.signature(subject.model.forward).parameters:
        raise Unsupported(f"{type(subject.model).__name__}.forward takes no `{KEEP}`")
    with torch.no_grad(), subject.numerics():
        spec = subject.forward_adapter.arguments(subject.passes.ids(tokens), use_cache=False)
        logits_BNV: Tensor = subject.model(**spec, **{KEEP: keep}).logits
    return logits_BNV


def _encoder(subject: Subject, ids_BT: Tensor) -> dict[str, Any]:
    """The fixed input of an encoder in front of the decoder."""
    return {
        name: for_rows(value, ids_BT, subject.dtype)
        for name, value in subject.forward_adapter.fixed.items()
    }


def _can_generate(model: Any) -> bool:
    spec = getattr(model, "can_generate", None)
    return bool(spec()) if callable(spec) else True


def _pad_id(subject: Subject) -> int:
    pad = getattr(subject.config, "pad_token_id", None)
    return (
        pad if isinstance(pad, int) and 0 <= pad < subject.facts.vocab else subject.inputs.pool[0]
    )


def _settings(
    subject: Subject, ids_BT: Tensor, new_tokens: int, options: dict[str, Any]
) -> GenerationConfig:
    """Greedy, of a fixed length: no end token, so that every model produces as many tokens as
    asked; nothing is compiled.

    A decoder behind an encoder starts with the first token that it is given: any other start would
    be put in front.
    """
    start = {"decoder_start_token_id": int(ids_BT[0, 0])} if subject.forward_adapter.fixed else {}
    return GenerationConfig(
        do_sample=False,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        pad_token_id=_pad_id(subject),
        eos_token_id=None,
        bos_token_id=None,
        return_dict_in_generate=True,
        output_logits=True,
        **{"disable_compile": True, **start, **options},
    )


def _noted(subject: Subject, call: dict[str, Any], seen: list[Row | None]) -> dict[str, Any]:
    """Write down the positions of a call; the call itself stays as it is."""
    positions = call.get(subject.forward_adapter.positions_name or "")
    ids = call.get(subject.forward_adapter.ids_name)
    subject.loaded.count(int(ids.shape[1]) if isinstance(ids, Tensor) else 0)
    seen.append(
        tuple(int(p) for p in positions.flatten()) if isinstance(positions, Tensor) else None
    )
    return call


def require_yardstick(subject: Subject) -> None:
    """One forward over the answer knows later tokens: it is a yardstick only where they move
    nothing before them.

    Raises:
        Unsupported: they do.
    """
    last = subject.inputs.length - 1
    changed = ForwardSpec((subject.inputs.other(subject.inputs.row, last),))
    usual = ForwardSpec(subject.inputs.tokens)
    got_BTV, want_BTV = (subject.logits(each)[:, :last] for each in (changed, usual))
    if beyond(got_BTV, want_BTV, subject.budget.value):
        raise Unsupported(
            "later tokens move earlier logits, so that one forward over the answer is no yardstick"
        )


def require_padding(subject: Subject, rows: Tokens, answers: list[Row]) -> None:
    """A batch that one padded forward gets wrong as well says nothing about generate().

    Raises:
        Unsupported: it does.
    """
    whole = tuple((*row, *answer) for row, answer in zip(rows, answers, strict=True))
    ids_BT, mask_BT = padded(subject, whole, len(whole[0]))
    positions_BT = (mask_BT.cumsum(-1) - 1).clamp_min(0) if subject.can.takes_positions else None
    tokens = tuple(tuple(map(int, row)) for row in ids_BT)
    with torch.no_grad():
        padded_BTV = subject.passes.call(
            tokens, mask=mask_BT, positions_BT=positions_BT, use_cache=False
        ).logits_BTV
    for row, alone in enumerate(whole):
        alone_TV = subject.logits(ForwardSpec((alone,)))[0]
        if beyond(padded_BTV[row, -len(alone) :], alone_TV, subject.budget.value):
            raise Unsupported(
                "one forward of the padded batch differs as well: that is for `padding`"
            )
