"""Open an engine by what the user typed: a URL, `RUNTIME:FOLDER`, or a folder and `--engine`.

Servers are asked in one of three ways, which `auto` finds out by trying. Other adapters come from
the entry points of `attncheck.engines`: a function of what stands behind the colon.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

from attncheck.core.errors import TargetError, contained, first_line, unknown
from attncheck.core.registry import import_file
from attncheck.core.settings import Settings
from attncheck.engines.engine import Engine, EngineError, EngineGone, EngineLimits
from attncheck.engines.servers.client import ServerClient
from attncheck.targets.target import ENGINES, RUNTIMES, Target

HOME = "attncheck.engines"
SERVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "vllm": ("completions", {"own": True}),
    "openai": ("completions", {"own": False}),
}
"""The module and the arguments of each way of asking a server."""
AUTO: tuple[tuple[str, dict[str, Any]], ...] = (("llama", {}), ("completions", {}))
MEMBERS = ("name", "traits", "ask", "ask_together")


@contextlib.contextmanager
def opened(target: Target, settings: Settings) -> Iterator[Engine]:
    """The engine behind a target while the block runs.

    Raises:
        TargetError: it cannot be opened, in one line.
    """
    engine = _opened(target, settings)
    try:
        yield engine
    finally:
        close = getattr(engine, "close", None)
        if callable(close):
            close()


def _opened(target: Target, settings: Settings) -> Engine:
    if target.kind == "server":
        return open_server(target.where, settings)
    if target.kind == "runtime":
        return open_runtime(target.attribute, target.where)
    if target.kind == "factory":
        return _of_factory(target)
    return open_runtime(str(settings.engine), target.where)


def open_runtime(name: str, where: str) -> Engine:
    """A model in a runtime of this process.

    Raises:
        TargetError: no such runtime, or it does not load the model.
    """
    if name in RUNTIMES:
        opener: Callable[[str], Engine] = import_module(f"{HOME}.runtimes.{name}").open_runtime
    else:
        found = {entry.name: entry for entry in entry_points(group=ENGINES)}
        if name not in found:
            raise TargetError(unknown("engine", name, (*RUNTIMES, *found)))
        opener = found[name].load()
    with _told(f"{name}:{where}"):
        return opener(where)


def _of_factory(target: Target) -> Engine:
    factory = getattr(import_file(Path(target.where)), target.attribute, None)
    if not callable(factory):
        raise TargetError(f"{target.text}: `{target.where}` defines no `{target.attribute}`")
    with _told(target.text):
        made = factory()
    missing = [member for member in MEMBERS if not hasattr(made, member)]
    if missing:
        raise TargetError(f"{target.text}: no engine: it lacks `{missing[0]}`")
    return cast("Engine", made)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        with contained():
            yield
    except TargetError:
        raise
    except Exception as error:
        raise TargetError(f"{what}: not opened: {first_line(error)}") from error


def limits_of(settings: Settings) -> EngineLimits:
    """What the settings let an engine be asked."""
    usual = EngineLimits()
    return EngineLimits(
        requests=settings.requests or usual.requests,
        rate=settings.rate or usual.rate,
        patience=settings.patience or usual.patience,
    )


def open_server(url: str, settings: Settings) -> Engine:
    """The server behind a URL.

    Raises:
        TargetError: it does not answer, or in no way that is known.
    """
    client = ServerClient(url, limits_of(settings))
    api = settings.api or "auto"
    if api != "auto" and api not in SERVERS:
        raise TargetError(unknown("api", api, ("auto", *SERVERS)))
    ways = AUTO if api == "auto" else (SERVERS[api],)
    reason = ""
    for module, arguments in ways:
        opener = import_module(f"{HOME}.servers.{module}").open_server
        try:
            return cast("Engine", opener(client, settings.served_model, **arguments))
        except EngineGone as error:
            raise TargetError(str(error)) from error
        except EngineError as error:
            reason = str(error)
    raise TargetError(reason)


def with_vocabulary(engine: Engine, vocab: int, context: int | None) -> Engine:
    """The engine, with the sizes of its twin where it does not say its own."""
    traits = engine.traits
    changed = replace(
        traits, vocab=traits.vocab or vocab, context=traits.context or context, material=()
    )
    with contextlib.suppress(AttributeError):
        engine.traits = changed  # type: ignore[misc]
    return engine
