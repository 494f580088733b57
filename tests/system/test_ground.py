"""The ground that the other system tests stand on: a daemon starts, answers and ends."""

from __future__ import annotations

from typing import Any


def test_a_daemon_serves_answers_and_ends(serve: Any, image: Any) -> None:
    daemon = serve("--disk", f"web={image('web')}", "--cache", "off")
    assert daemon.disk("web")["capacity_bytes"] == 16 << 20
    assert daemon.socket("web.nbd").is_socket()
    assert daemon.end() == 0
    assert not daemon.socket("web.nbd").exists()
