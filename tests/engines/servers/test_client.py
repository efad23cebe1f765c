from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from engine_servers import serving

from attncheck.core.errors import TargetError
from attncheck.engines.engine import EngineError, EngineGone, EngineLimits
from attncheck.engines.servers import client as client_module
from attncheck.engines.servers.client import KEY, ServerClient, quoted


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FIRST_WAIT", 0.01)


def answering(status: int, body: Any) -> Callable[[str, dict[str, Any]], tuple[int, Any]]:
    return lambda path, sent: (status, body)


def refused(url: str, **limits: int) -> str:
    with pytest.raises(EngineError) as error:
        ServerClient(url, EngineLimits(**limits)).post("/completion", {})
    assert "\n" not in str(error.value)
    return f"{type(error.value).__name__}: {str(error.value).replace(url, 'URL')}"


def test_an_answer_of_another_kind_is_quoted() -> None:
    with serving(answering(200, b"<html>\n\nbusy</html>")) as server:
        assert refused(server.url) == "EngineError: URL/completion: not JSON: “<html> busy</html>”"
    with serving(answering(200, [1])) as server:
        assert refused(server.url) == "EngineError: URL/completion: not a JSON object: “[1]”"


def test_an_error_of_the_server_is_quoted_by_its_message_and_not_repeated() -> None:
    with serving(answering(500, {"error": {"message": "out of\nmemory"}})) as server:
        assert refused(server.url) == "EngineError: URL/completion: answers 500: “out of memory”"
        assert len(server.seen) == 1


def test_a_server_that_asks_to_wait_is_asked_again_and_then_given_up() -> None:
    with serving(answering(429, {"message": "slow down"})) as server:
        line = refused(server.url, retries=2)
        assert line == "EngineGone: URL/completion: answers 429: “slow down” (3 times)"
        assert len(server.seen) == 3


def test_a_server_that_recovers_is_used() -> None:
    answers = iter([(503, {"error": "loading"}), (200, {"ok": True})])
    with serving(lambda path, sent: next(answers)) as server:
        assert ServerClient(server.url, EngineLimits()).post("/x", {}) == {"ok": True}


def test_nothing_there_is_one_line() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = refused(f"http://127.0.0.1:{port}", retries=1)
    assert line == "EngineGone: URL/completion: no answer: Connection refused (2 times)"


def test_a_server_that_hangs_is_given_up_after_the_patience() -> None:
    with serving(lambda path, sent: (time.sleep(3), (200, {}))[1]) as server:
        line = refused(server.url, patience=1)
        assert line == "EngineGone: URL/completion: no answer within 1 s"


def test_no_more_requests_than_allowed() -> None:
    with serving(answering(200, {})) as server:
        client = ServerClient(server.url, EngineLimits(requests=2))
        client.post("/x", {})
        client.post("/x", {})
        with pytest.raises(
            EngineGone, match="2 requests were sent, the most that --requests allows"
        ):
            client.post("/x", {})
        assert len(server.seen) == 2


def test_the_rate_holds_for_requests_at_once() -> None:
    with serving(answering(200, {})) as server:
        client = ServerClient(server.url, EngineLimits(rate=20))
        started = time.monotonic()
        threads = [threading.Thread(target=client.post, args=("/x", {})) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - started >= 0.2


def test_the_key_comes_from_the_environment_and_is_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(KEY, "secret")
    with serving(answering(401, {"message": "who are you"})) as server:
        line = refused(server.url)
        assert server.seen[0][2]["Authorization"] == "Bearer secret"
    assert line == "EngineError: URL/completion: answers 401: “who are you”"
    with pytest.raises(TargetError, match="a key in the URL would be shown") as error:
        ServerClient("http://me:secret@host/", EngineLimits())
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("url", ["http://", "ftp://host", "http://host:port"])
def test_a_url_that_is_none_is_one_line(url: str) -> None:
    with pytest.raises(TargetError):
        ServerClient(url, EngineLimits())


def test_what_is_quoted_is_short_and_on_one_line() -> None:
    assert quoted('{"error": {"message": "a\\nb"}}') == "“a b”"
    assert len(quoted("x" * 5000)) < 200
