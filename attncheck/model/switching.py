"""Whether another attention implementation really runs when it is requested, judged by the kernel
that is called.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any
from unittest import mock

import torch
from torch import nn

from attncheck.attention.call import AttentionCall
from attncheck.attention.recorder import record
from attncheck.core.errors import TargetError, Unsupported, first_line
from attncheck.model.refusal import REFUSALS
from attncheck.model.subject import Subject

FLEX = "flex_attention"
SHORT = 8
USUAL = "sdpa"
"""The library's default where a model supports it."""
_as_written: ContextVar[bool] = ContextVar("as_written", default=False)


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """While active, what the library compiles runs as it is written: flex_attention then takes
    seconds less, and float64.

    Raises:
        Unsupported: this torch cannot leave compilation out.
    """
    stance = getattr(torch.compiler, "set_stance", None)
    if stance is None:
        raise Unsupported("this torch compiles flex_attention in any case")
    with stance("force_eager"), warnings.catch_warnings(), _compiling_later():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _compiling_later() -> Iterator[None]:
    """While active, `torch.compile` loads no compiler, which takes a second: what it returns runs
    as it is written, and compiles in the first call without this.
    """
    usual, token = torch.compile, _as_written.set(True)

    def compile_later(model: Any = None, **options: Any) -> Any:
        if model is None:
            return functools.partial(compile_later, **options)
        if isinstance(model, nn.Module):
            return usual(model, **options)
        compiled = functools.cache(lambda: usual(model, **options))

        @functools.wraps(model)
        def run(*args: Any, **named: Any) -> Any:
            return (model if _as_written.get() else compiled())(*args, **named)

        return run

    try:
        with mock.patch.object(torch, "compile", compile_later):
            yield
    finally:
        _as_written.reset(token)


@contextlib.contextmanager
def as_compared(subject: Subject, attns: Iterable[str | None]) -> Iterator[None]:
    """While active, flex attention beside another implementation runs as a probe runs it: on a CPU
    as it is written.

    Raises:
        Unsupported: this torch cannot leave compilation out.
    """
    written = subject.device.type == "cpu" and FLEX in attns and subject.attn != FLEX
    with uncompiled() if written else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def uncompiled_flex(attn: str | None) -> Iterator[None]:
    """`uncompiled` for flex_attention; every other implementation runs as usual.

    Raises:
        Unsupported: this torch cannot leave compilation out.
    """
    with uncompiled() if attn == FLEX else contextlib.nullcontext():
        yield


def kernels_called(subject: Subject, attn: str | None) -> frozenset[tuple[str, str]]:
    """Module and name of every attention kernel that a short forward calls under an implementation
    (None: the one in force).

    Raises:
        Unsupported: the model refuses the implementation, or keeps its own without saying so.
    """

    def kernel_of(call: AttentionCall) -> tuple[str, str]:
        return call.kernel.__module__, call.kernel.__name__

    with subject.using(attn), record(subject.model, kernel_of) as kernels, torch.no_grad():
        subject.passes.call((subject.inputs.row[:SHORT],), use_cache=False)
    return frozenset(kernels)


def not_switched(subject: Subject, attn: str) -> str | None:
    """Why a comparison with an implementation would compare nothing, or None: the kernel that runs
    is another one.
    """
    try:
        usual, switched = kernels_called(subject, None), kernels_called(subject, attn)
    except Unsupported as reason:
        return str(reason)
    except REFUSALS as error:
        return first_line(error)
    return f"the same kernel runs when `{attn}` is asked for" if usual == switched else None


def adopt(subject: Subject, attn: str | None) -> None:
    """Run a model, which its own code may have made, under the requested implementation from now
    on.

    Raises:
        TargetError: it would not really run, and why.
    """
    if attn is None or attn == subject.attn:
        return
    with uncompiled_flex(attn):
        reason = not_switched(subject, attn)
    if reason is not None:
        raise TargetError(f"{subject.name}: --attn {attn} cannot be used: {reason}")
    subject.loaded.choose(attn)
