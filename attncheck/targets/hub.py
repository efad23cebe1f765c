"""Whether the hub can be reached: asked once and quickly, since the client would retry for half a
minute first.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from urllib.parse import urlparse

ENDPOINT = "https://huggingface.co"
PATIENCE = 3.0
PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


@cache
def reachable() -> bool:
    """Whether a connection to the hub opens within `PATIENCE` seconds; behind a proxy the client
    has to find out itself.
    """
    if any(os.environ.get(name) for name in PROXIES):
        return True
    where = urlparse(os.environ.get("HF_ENDPOINT", ENDPOINT))
    try:
        port = where.port or (443 if where.scheme == "https" else 80)
        with socket.create_connection((where.hostname or "", port), timeout=PATIENCE):
            return True
    except OSError:
        return False
