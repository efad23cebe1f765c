"""A careful HTTP client: bounded requests, rate, time and size; errors quoted in one line.

It sends to one URL only, follows no redirect and uses no proxy. A key is read from the environment
(`ATTNCHECK_API_KEY`) and shown nowhere.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final
from urllib.parse import urlsplit

from attncheck.core.errors import TargetError
from attncheck.core.visible import shortened
from attncheck.engines.engine import EngineError, EngineGone, EngineLimits

KEY = "ATTNCHECK_API_KEY"
LATER = (429, 503)
LARGEST = 256 << 20
PIECE = 1 << 16
FIRST_WAIT, LONGEST_WAIT = 0.2, 10.0
QUOTED = 160
LOST = (ConnectionError, http.client.HTTPException)


@final
@dataclass
class ServerClient:
    """Requests to one server, counted. `slow` is the longest that one took, in seconds."""

    url: str
    limits: EngineLimits
    sent: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _next: float = 0.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TargetError(f"{shortened(self.url)}: expected http://HOST[:PORT][/PATH]")
        if parts.username or parts.password:
            raise TargetError(f"a key in the URL would be shown: set {KEY} instead")
        try:
            self._address = parts.hostname, parts.port
        except ValueError as error:
            raise TargetError(f"{shortened(self.url)}: {error}") from error
        self._secure, self._path = parts.scheme == "https", parts.path.rstrip("/")

    def get(self, path: str) -> Any:
        """The JSON behind a path, or the text where it is no JSON.

        Raises:
            EngineError: the server says that there is none.
        """
        text = self._answer("GET", path, None)
        try:
            return json.loads(text)
        except ValueError:
            return text

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object that answers a JSON object.

        Raises:
            EngineError: another answer, quoted.
            EngineGone: no answer, or no more requests are allowed.
        """
        text = self._answer("POST", path, json.dumps(body).encode())
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise EngineError(f"{self.url}{path}: not JSON: {quoted(text)}") from error
        if not isinstance(found, dict):
            raise EngineError(f"{self.url}{path}: not a JSON object: {quoted(text)}")
        return found

    def _answer(self, method: str, path: str, body: bytes | None) -> str:
        wait, reason = FIRST_WAIT, ""
        for attempt in range(self.limits.retries + 1):
            if attempt:
                time.sleep(wait)
                wait = min(LONGEST_WAIT, 2 * wait)
            self._take_turn()
            try:
                status, text, later = self._once(method, path, body)
            except TimeoutError as error:
                words = f"no answer within {self.limits.patience} s"
                raise EngineGone(f"{self.url}{path}: {words}") from error
            except LOST as error:
                reason = f"no answer: {_words(error)}"
                continue
            except OSError as error:
                raise EngineGone(f"{self.url}{path}: no answer: {_words(error)}") from error
            if status < 300:
                return text
            reason = f"answers {status}: {quoted(text)}"
            if status not in LATER:
                raise EngineError(f"{self.url}{path}: {reason}")
            wait = max(wait, min(later, LONGEST_WAIT))
        tried = f" ({self.limits.retries + 1} times)"
        raise EngineGone(f"{self.url}{path}: {reason}{tried}")

    def _once(self, method: str, path: str, body: bytes | None) -> tuple[int, str, float]:
        """Status, text and how long the server asks to wait."""
        until = time.monotonic() + self.limits.patience
        host, port = self._address
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(host, port, timeout=self.limits.patience)
        headers = {"Content-Type": "application/json"}
        if os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {os.environ[KEY]}"
        try:
            connection.request(method, self._path + path, body, headers)
            answer = connection.getresponse()
            data = bytearray()
            while piece := answer.read(PIECE):
                data += piece
                if len(data) > LARGEST:
                    raise EngineError(f"{self.url}{path}: an answer of more than {LARGEST} bytes")
                if time.monotonic() > until:
                    raise TimeoutError
            later = answer.headers.get("Retry-After", "0")
            return answer.status, data.decode("utf-8", "replace"), _number(later)
        finally:
            connection.close()

    def _take_turn(self) -> None:
        """Wait for this request's turn.

        Raises:
            EngineGone: all requests that are allowed were sent.
        """
        with self._lock:
            if self.sent >= self.limits.requests:
                text = f"{self.sent} requests were sent, the most that --requests allows"
                raise EngineGone(f"{self.url}: {text}")
            self.sent += 1
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + (1 / self.limits.rate if self.limits.rate else 0.0)
        time.sleep(turn - now)


def quoted(text: str) -> str:
    """What a server said, on one line; of a JSON error its message."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = text
    while isinstance(found, dict):
        found = next((found[key] for key in ("error", "message", "detail") if key in found), "")
    return f"“{shortened(str(found) or text, QUOTED)}”"


def _words(error: BaseException) -> str:
    return getattr(error, "strerror", None) or shortened(str(error)) or type(error).__name__


def _number(text: str) -> float:
    try:
        return max(0.0, float(text))
    except ValueError:
        return 0.0
