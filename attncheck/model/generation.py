"""Run generate(): its tokens, the logits behind each, and the positions that it passes on.

Axes: B batch, T positions, S encoder positions, N generated tokens, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin

from attncheck.core.errors import CallFailed, Unsupported, first_line
from attncheck.model.cache_kinds import promised
from attncheck.model.forward import edited
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Row, Tokens, for_rows
from attncheck.model.padding import pad_id, padded_ids
from attncheck.model.passed_on import Passed as Passed
from attncheck.model.passed_on import noted
from attncheck.model.refusal import REFUSALS, classified
from attncheck.model.signature import names_argument, takes_argument
from attncheck.model.subject import Subject
from attncheck.numerics.constants import without_constants
from attncheck.numerics.divergence import finitely_beyond

KEEP = "logits_to_keep"
IDS, MASK = "input_ids", "attention_mask"


@final
@dataclass(frozen=True)
class Generated:
    """One greedy generation: its tokens, logits_BNV behind them, and what forwards were given."""

    tokens: Row
    logits_BNV: Tensor
    passed: Passed
    prompt: Row = ()
    padding: int = 0


def greedy(
    subject: Subject, prompt: Row, new_tokens: int, padding: int = 0, **options: Any
) -> Generated:
    """Generate greedily from one prompt, left-padded by `padding` tokens.

    Raises:
        Unsupported: the model has no generate(), takes no 2D mask for the padding, or generate()
            raises.
    """
    if padding:
        subject.can.mask_2d.require()
    ids_BT, mask_BT = padded_ids(subject, (prompt,), len(prompt) + padding)
    passed = Passed()
    output = run(subject, ids_BT, mask_BT, new_tokens, passed, **options)
    fed = (pad_id(subject),) * padding + prompt
    answer = answer_of(output, ids_BT.shape[1])
    logits_BNV = without_constants(torch.stack(output.logits, 1))
    return Generated(answer, logits_BNV, passed, fed, padding)


def run(
    subject: Subject,
    ids_BT: Tensor,
    mask_BT: Tensor,
    new_tokens: int,
    passed: Passed | None = None,
    given: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """The whole output of one generate(). `passed` collects what each forward is given; `given`
    holds arguments beside ids and mask.

    Raises:
        Unsupported: the model has no generate(), or generate() raises.
    """
    generate = generate_of(subject)
    if subject.forward_adapter.codebooks is not None:
        raise Unsupported("generate() makes the codes beside the tokens itself, from sound")
    notes = passed or Passed()
    adapter = subject.forward_adapter
    encoder = {name: for_rows(each, ids_BT, subject.dtype) for name, each in adapter.fixed.items()}
    # generate() refuses a mask where forward names none; it makes one of ones itself elsewhere
    given_mask = {} if adapter.mask_name is None and bool(mask_BT.all()) else {MASK: mask_BT}
    mask = {adapter.mask_name: mask_BT} if adapter.mask_name else given_mask
    arguments = {**adapter.token_arguments(ids_BT), **mask, **encoder, **(given or {})}
    notes.given, notes.rows = dict(arguments), len(ids_BT)
    config = _config(subject, ids_BT, new_tokens, options)
    watching = edited(subject.model, lambda call: noted(subject, call, notes))
    with torch.no_grad(), subject.numerics(), watching, _own_defaults(subject.model, config):
        try:
            return generate(**arguments, generation_config=config)
        except REFUSALS as error:
            raise classified(
                error,
                f"generate() raises {first_line(error)}",
                model=subject.model,
                documented=_is_the_librarys(subject.model)
                and promised(str(options.get("cache_implementation", "")), subject.model),
                option=bool(options or given),
            ) from error


def _is_the_librarys(model: Any) -> bool:
    """Whether generate() is the library's: a class with one of its own takes what it likes."""
    return getattr(type(model), "generate", None) is GenerationMixin.generate


def generate_of(subject: Subject) -> Callable[..., Any]:
    """The model's generate().

    Raises:
        Unsupported: it has none.
    """
    generate: Callable[..., Any] | None = getattr(subject.model, "generate", None)
    can_generate = getattr(subject.model, "can_generate", None)
    if generate is None or (callable(can_generate) and not can_generate()):
        raise Unsupported(f"{type(subject.model).__name__} has no generate()")
    return generate


def answer_of(output: Any, start: int) -> Row:
    """The first row's tokens from position `start` on."""
    return tuple(map(int, output.sequences[0, start:]))


def _config(
    subject: Subject, ids_BT: Tensor, new_tokens: int, options: dict[str, Any]
) -> GenerationConfig:
    """Greedy, of a fixed length (no end token), uncompiled.

    A decoder behind an encoder starts with the first token that it is given: the library would put
    any other start in front.
    """
    start = {"decoder_start_token_id": int(ids_BT[0, 0])} if subject.forward_adapter.fixed else {}
    usual = {
        "do_sample": False,
        "max_new_tokens": new_tokens,
        "min_new_tokens": new_tokens,
        "pad_token_id": pad_id(subject),
        "eos_token_id": None,
        "bos_token_id": None,
        "return_dict_in_generate": True,
        "output_logits": True,
        "disable_compile": True,
    }
    return GenerationConfig(**{**usual, **start, **options})


@contextlib.contextmanager
def _own_defaults(model: Any, config: GenerationConfig) -> Iterator[None]:
    """Keep the library from filling unset options from the model's own defaults: a forced end token
    is no argmax.
    """
    before = getattr(model, "generation_config", None)
    model.generation_config = config
    try:
        yield
    finally:
        model.generation_config = before


def padded_encoder(subject: Subject, padding: int) -> dict[str, Tensor]:
    """The encoder's ids with `padding` more tokens behind them, and the mask that hides those.

    Raises:
        Unsupported: there is no encoder that reads ids.
    """
    ids_BS = subject.forward_adapter.fixed.get(IDS)
    if not isinstance(ids_BS, Tensor):
        raise Unsupported("the model has no encoder that reads ids")
    tail_BS = torch.full((1, padding), subject.inputs.pool[0], device=ids_BS.device)
    mask_BS = torch.cat([torch.ones_like(ids_BS), torch.zeros_like(tail_BS)], 1)
    wider = {IDS: torch.cat([ids_BS, tail_BS], 1), MASK: mask_BS}
    return {name: value.to(subject.device) for name, value in wider.items()}


def kept_logits(subject: Subject, tokens: Tokens, keep: int) -> Tensor:
    """logits_BNV of the last `keep` positions, requested with `logits_to_keep`.

    Raises:
        Unsupported: forward takes no such argument, or ignores it among its keywords.
        CallFailed: forward has the argument and returns another number of positions.
    """
    if not takes_argument(subject.model, KEEP):
        raise Unsupported(f"{type(subject.model).__name__}.forward takes no `{KEEP}`")
    with torch.no_grad(), subject.numerics():
        call = subject.forward_adapter.arguments(subject.passes.ids(tokens), use_cache=False)
        logits_BNV = without_constants(subject.model(**call, **{KEEP: keep}).logits)
    if logits_BNV.shape[1] != keep:
        got = f"returns logits of {logits_BNV.shape[1]} positions for `{KEEP}={keep}`"
        kind = CallFailed if names_argument(subject.model, KEEP) else Unsupported
        raise kind(f"{type(subject.model).__name__}.forward {got}")
    return logits_BNV


def reads_ahead(subject: Subject) -> bool:
    """Whether later tokens change earlier logits: one forward over the answer is then no reference
    for generate(), but one forward over each of its prefixes is.
    """
    last = subject.inputs.length - 1
    changed = ForwardSpec((subject.inputs.other(subject.inputs.row, last),))
    usual = ForwardSpec(subject.inputs.tokens)
    got_BTV, want_BTV = (subject.logits(each)[:, :last] for each in (changed, usual))
    return finitely_beyond(got_BTV, want_BTV, subject.budget.value)


def padded_answers(subject: Subject, rows: Tokens, answers: Tokens) -> Tensor:
    """logits_BNV of one forward over padded prompts and their answers, at the positions from which
    the answers were drawn.
    """
    whole = tuple((*row, *answer) for row, answer in zip(rows, answers, strict=True))
    ids_BT, mask_BT = padded_ids(subject, whole, len(whole[0]))
    positions_BT = (mask_BT.cumsum(-1) - 1).clamp_min(0) if subject.can.takes_positions else None
    tokens = tuple(tuple(map(int, row)) for row in ids_BT)
    with torch.no_grad():
        padded_BTV = subject.passes.call(
            tokens, mask=mask_BT, positions_BT=positions_BT, use_cache=False
        ).logits_BTV
    return padded_BTV[:, -len(answers[0]) - 1 : -1]
