"""Asking generate(): what it produces, the logits behind each token, and the positions that it hands to the model.

Axes: B batch, T positions, N generated tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from transformers import GenerationConfig

from attncheck.errors import Unsupported, first_line
from attncheck.subject.calls import edited
from attncheck.subject.encoder import for_rows
from attncheck.subject.inputs import Row
from attncheck.subject.passes import REFUSALS, Mask2D, Pass
from attncheck.subject.subject import Subject


@final
@dataclass(frozen=True)
class Generated:
    """The tokens of one greedy generation, logits_BNV behind them, and the positions of each forward as handed over."""

    tokens: Row
    logits_BNV: Tensor
    positions: tuple[Row | None, ...]
    prompt: Row = ()
    padding: int = 0

    @property
    def asked(self) -> Pass:
        """The forwards of generate() as a pass of its own: prompt, then single steps, with the positions that it handed over."""
        row, new = (*self.prompt, *self.tokens[:-1]), len(self.tokens) - 1
        told = [row for row in self.positions if row is not None]
        flat = tuple(position for given in told for position in given)
        return Pass(
            (row,),
            chunks=(len(self.prompt), *((1,) * new)),
            positions=(flat,) if len(flat) == len(row) else None,
            mask=Mask2D(((0,) * self.padding + (1,) * (len(row) - self.padding),)),
        )

    @property
    def positions_note(self) -> str:
        """What generate() gave the model as positions, in words."""
        given = [row for row in self.positions if row is not None]
        if not given:
            return "generate() hands over no positions"
        first = given[0]
        shown = f"{first[0]}..{first[-1]}" if len(first) > 1 else f"{first[0]}"
        return f"generate() hands over positions {shown}" + "".join(f", {row[-1]}" for row in given[1:])


def greedy(subject: Subject, prompt: Row, new_tokens: int, padding: int = 0, **options: Any) -> Generated:
    """Generate greedily from one prompt, left-padded by `padding` tokens.

    Raises:
        Unsupported: the model has no generate(), takes no 2D mask where padding is asked for, or generate() raises.
    """
    generate: Callable[..., Any] | None = getattr(subject.model, "generate", None)
    if generate is None or not _can_generate(subject.model):
        raise Unsupported(f"{type(subject.model).__name__} has no generate()")
    if padding and subject.can.mask_2d:
        raise Unsupported(subject.can.mask_2d)
    ids_BT = subject.passes.ids(((_pad_id(subject),) * padding + prompt,))
    mask_BT = torch.tensor([[0] * padding + [1] * len(prompt)], device=ids_BT.device)
    seen: list[Row | None] = []
    asked = {subject.door.ids_name: ids_BT, subject.door.mask_name or "attention_mask": mask_BT, **_encoder(subject, ids_BT)}
    with torch.no_grad(), subject.numerics(), edited(subject.model, lambda call: _noted(subject, call, seen)):
        try:
            made = generate(**asked, generation_config=_settings(subject, new_tokens, options))
        except REFUSALS as error:
            raise Unsupported(f"generate() raises {first_line(error)}") from error
    tokens = tuple(int(token) for token in made.sequences[0, ids_BT.shape[1] :])
    fed = (_pad_id(subject),) * padding + prompt
    return Generated(tokens, torch.stack(made.logits, 1), tuple(seen), fed, padding)


def _encoder(subject: Subject, ids_BT: Tensor) -> dict[str, Any]:
    """The fixed input of an encoder in front of the decoder."""
    return {name: for_rows(value, ids_BT, subject.dtype) for name, value in subject.door.fixed.items()}


def _can_generate(model: Any) -> bool:
    asked = getattr(model, "can_generate", None)
    return bool(asked()) if callable(asked) else True


def _pad_id(subject: Subject) -> int:
    pad = getattr(subject.config, "pad_token_id", None)
    return pad if isinstance(pad, int) and 0 <= pad < subject.facts.vocab else subject.inputs.pool[0]


def _settings(subject: Subject, new_tokens: int, options: dict[str, Any]) -> GenerationConfig:
    """Greedy, of a fixed length: no end token, so that every model produces as many tokens as asked."""
    return GenerationConfig(
        do_sample=False,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        pad_token_id=_pad_id(subject),
        eos_token_id=None,
        bos_token_id=None,
        return_dict_in_generate=True,
        output_logits=True,
        **options,
    )


def _noted(subject: Subject, call: dict[str, Any], seen: list[Row | None]) -> dict[str, Any]:
    """Write down the positions of a call; the call itself stays as it is."""
    positions = call.get(subject.door.positions_name or "")
    ids = call.get(subject.door.ids_name)
    if subject.on_forward is not None and isinstance(ids, Tensor):
        subject.on_forward(int(ids.shape[1]))
    subject.forwards += 1
    seen.append(tuple(int(p) for p in positions.flatten()) if isinstance(positions, Tensor) else None)
    return call
