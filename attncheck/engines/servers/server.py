"""What the adapters of servers share: reading answers, and requests that are under way at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from attncheck.engines.engine import EngineError, EngineReply, EngineRequest, Ids, Together
from attncheck.model.inputs import TEXT

LEAST = 24
"""Tokens that a text must have to serve as material."""
LOOKED = 0.002
"""Seconds between two looks at what a server is computing."""


def at_once(
    ask: Callable[[EngineRequest, int], EngineReply],
    requests: Sequence[EngineRequest],
    running: Callable[[], int | None],
) -> Together:
    """Send requests at once, each with its number, and watch how many run together."""
    with _watched(running) as seen, ThreadPoolExecutor(len(requests)) as pool:
        replies = tuple(pool.map(ask, requests, range(len(requests))))
    return Together(replies=replies, at_once=max(seen) if seen else None)


@contextmanager
def _watched(running: Callable[[], int | None]) -> Iterator[list[int]]:
    """Collect how many requests run, again and again, until the block ends."""
    seen: list[int] = []
    done = threading.Event()

    def look() -> None:
        with suppress(EngineError):
            while not done.is_set():
                count = running()
                if count is None:
                    return
                seen.append(count)
                done.wait(LOOKED)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()


def material_of(tokenize: Callable[[str], Any]) -> Ids:
    """Token ids of an English text by the server's own tokenizer; nothing where it has none."""
    try:
        found = tokenize(TEXT)
    except EngineError:
        return ()
    ids = found if isinstance(found, list) else []
    whole = all(isinstance(each, int) and not isinstance(each, bool) for each in ids)
    return tuple(ids) if whole and len(set(ids)) >= LEAST else ()


def entry(found: Any, *path: str | int) -> Any:
    """A value inside an answer.

    Raises:
        EngineError: the answer has no such place.
    """
    for key in path:
        try:
            found = found[key]
        except (KeyError, IndexError, TypeError) as error:
            place = ".".join(map(str, path))
            raise EngineError(f"the answer has no `{place}`") from error
    return found


def number_in(found: Mapping[str, Any], *path: str) -> int | None:
    """A whole number inside an answer, None where there is none."""
    try:
        value = entry(found, *path)
    except EngineError:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
