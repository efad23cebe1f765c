"""What an exception of the model means: a call that it refuses at the door, which is a reason to
skip, or a call that it accepted and then broke on, which is a finding.
"""

from __future__ import annotations

import importlib.util
import linecache
import re
from collections.abc import Callable, Iterator
from itertools import dropwhile
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import transformers

from attncheck.core.errors import CallFailed, Unsupported
from attncheck.model.signature import parameters_of

REFUSALS = (
    TypeError,
    ValueError,
    RuntimeError,
    AttributeError,
    NotImplementedError,
    LookupError,
    ImportError,
    AssertionError,
    StopIteration,
)
"""What models and kernels raise when a call fails in them."""
SAYS_SO = re.compile(r"support|compatib|implement|\brequire|make sure|cannot|can not|unable", re.I)
"""How a deliberate check words a limit of the model, rather than a fault that it ran into."""
SIGNATURE = re.compile(r"\(\) (got an unexpected|missing \d|takes )")
NAMED = re.compile(r"argument '(\w+)'")
OURS = tuple(
    str(Path(spec.origin).parent)
    for name in ("attncheck", "attncheck_probes")
    if (spec := importlib.util.find_spec(name)) is not None and spec.origin is not None
)
READERS = tuple(str(Path(OURS[0], name)) for name in ("judge", "observation", "diagnosis"))
"""Our code that looks at a forward from inside and does none of its work."""
TORCH = str(Path(torch.__file__).parent)
LIBRARY = str(Path(transformers.__file__).parent)
MODELS = str(Path(LIBRARY, "models"))


def classified(
    error: Exception,
    message: str,
    *,
    model: Any = None,
    documented: bool = True,
    option: bool = False,
    works: Callable[[], bool] = lambda: False,
) -> Unsupported:
    """What to raise in place of an exception of the model: `Unsupported` where it refuses the call
    at the door, otherwise `CallFailed`, which names the line that raised.

    `documented` is false for a call that only some models take; an `option` is a strategy of the
    library that a model may refuse in any words. `works` tries the same call at a
    small size: what works there is not refused.
    """
    if isinstance(error, Unsupported):
        return error
    refused = isinstance(error, torch.OutOfMemoryError) or (
        (not documented or refuses(error, model) or (option and deliberate(error))) and not works()
    )
    return Unsupported(message) if refused else CallFailed(message, where(error))


def refuses(error: Exception, model: Any = None) -> bool:
    """Whether an exception says that the call is not supported: an argument that the signature does
    not have, `NotImplementedError`, a package that is missing, or a deliberate check that says so.
    """
    if isinstance(error, (NotImplementedError, ImportError)):
        return True
    if isinstance(error, TypeError) and SIGNATURE.search(str(error)):
        named = NAMED.search(str(error))
        return named is None or model is None or named.group(1) not in parameters_of(model)
    return deliberate(error) and SAYS_SO.search(str(error)) is not None


def of_the_model(error: Exception) -> bool:
    """Whether an exception passed through code of the model or its library, and is no fault of
    ours: none of what only reads a forward raised inside of it.
    """
    own = _own_frame(error)
    inner = dropwhile(lambda each: each is not own, _frames(error))
    return own is not None and not any(_file(each).startswith(READERS) for each in inner)


def where(error: Exception) -> str:
    """The line of the model that raised, with its text."""
    found = _own_frame(error)
    if found is None:
        return ""
    name, number = _file(found), found.tb_lineno
    text = linecache.getline(name, number).strip()
    return f"{Path(name).name}:{number}" + (f" `{text}`" if text else "")


def _own_frame(error: Exception) -> TracebackType | None:
    """The innermost frame in a file of models; else the innermost one outside of torch and of
    attncheck.
    """
    own = [each for each in _frames(error) if not _foreign(_file(each))]
    models = [each for each in own if not _file(each).startswith(LIBRARY)]
    models += [each for each in own if _file(each).startswith(MODELS)]
    inner = max(models, key=own.index, default=None)
    return inner or next(reversed(own), None)


def _file(frame: TracebackType) -> str:
    return frame.tb_frame.f_code.co_filename


def _frames(error: Exception) -> Iterator[TracebackType]:
    frame = error.__traceback__
    while frame is not None:
        yield frame
        frame = frame.tb_next


def _foreign(filename: str) -> bool:
    return filename.startswith((*OURS, TORCH, "<frozen"))


def deliberate(error: Exception) -> bool:
    """Whether the line that raised is a `raise` or an `assert` of the model or its library."""
    last = next(reversed([*_frames(error)]), None)
    if last is None or _foreign(_file(last)):
        return False
    line = linecache.getline(_file(last), last.tb_lineno).strip()
    return line.startswith(("raise ", "assert "))
