"""Requests to the daemon by HTTP, as a program makes them."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any


def ask(port: int, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Status and JSON of an answer, as a program gets it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    text = None if body is None else json.dumps(body)
    connection.request(method, path, text, sent)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    is_json = answer.headers["Content-Type"] == "application/json"
    return answer.status, json.loads(data) if is_json else data


def by_socket(path: Path, request: bytes) -> bytes:
    """Bytes that a unix socket answers until it hangs up."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(600)
        client.connect(str(path))
        client.sendall(request)
        answer = b""
        while data := client.recv(65536):
            answer += data
        return answer
