"""Completion in real shells: the script of `seekway generate` is loaded, and asked for what a
user would see who presses Tab."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import need, wait_for

BASH = r"""
eval "$(seekway generate bash)"
COMP_LINE=$1
COMP_POINT=${#COMP_LINE}
compopt() { :; } # there is no line that is being typed
# As readline cuts words: at spaces, and at the characters of COMP_WORDBREAKS.
word=${COMP_LINE##*[ :=]}
_seekway seekway "$word" ""
printf '%s\n' "${COMPREPLY[@]}"
"""
FISH = r"""
seekway generate fish | source
complete --do-complete $argv[1]
"""
ZSH = r"""
# Outside of a line that is being typed: what the function would show is printed.
compdef() { : }
_describe() { print -rl -- "${(@P)3}" }
source <(seekway generate zsh)
words=(${(z)1})
[[ $1 == *' ' ]] && words+=('')
CURRENT=$#words
_clap_dynamic_completer_seekway
"""
SHELLS = ["bash", "fish", "zsh"]


@pytest.fixture
def ask(seekway: str, tmp_path: Path) -> Callable[[str, str], set[str]]:
    """`ask(shell, line)` returns what the shell proposes at the end of the line."""
    environment = {
        **os.environ,
        "PATH": f"{Path(seekway).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(tmp_path),
    }
    commands = {
        "bash": ["bash", "--norc", "-c", BASH, "bash"],
        "fish": ["fish", "--no-config", "-c", FISH],
        "zsh": ["zsh", "--no-rcs", "-c", ZSH, "zsh"],
    }

    def ask(shell: str, line: str) -> set[str]:
        asked = subprocess.run(
            [*commands[shell], line],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert asked.stderr == "", asked.stderr
        # What stands behind a name describes it; zsh escapes colons of the name.
        separator = {"bash": "\n", "fish": "\t", "zsh": r"(?<!\\):"}[shell]
        names = (re.split(separator, line)[0] for line in asked.stdout.split("\n"))
        return {name.replace("\\:", ":").strip() for name in names} - {""}

    return ask


@pytest.mark.parametrize("shell", SHELLS)
def test_disks_and_devices_of_a_daemon(
    shell: str, ask: Callable[[str, str], set[str]], serve: Any, image: Any
) -> None:
    need(shell)
    daemon = serve(
        "--disk", f"web={image('web')}", "--disk", f"weblog={image('weblog')}", "--cache", "off"
    )
    ctl = f"seekway ctl --socket {daemon.socket('control.sock')}"
    for command in ("weight", "limit", "detach", "resize", "freeze", "thaw", "slow --disk"):
        line = f"{ctl} {command} we"
        # A daemon that is slow to answer has no candidates: on a busy machine ask again.
        wait_for(line, lambda line=line: {"web", "weblog"} <= ask(shell, line))
    device = daemon.status()["devices"][0]["name"]
    line = f"{ctl} policy noop --device "
    wait_for(line, lambda: device in ask(shell, line))


@pytest.mark.parametrize("shell", SHELLS)
def test_policies_with_their_parameters(shell: str, ask: Callable[[str, str], set[str]]) -> None:
    need(shell)
    # Bash replaces only what stands behind a colon or an equals sign.
    head = "" if shell == "bash" else "cfq:"
    assert "fairway" in ask(shell, "seekway ctl policy fair")
    assert f"{head}slice_idle=" in ask(shell, "seekway ctl policy cfq:slice_i")
    head = "" if shell == "bash" else "cfq:low_latency="
    assert {f"{head}true", f"{head}false"} <= ask(shell, "seekway ctl policy cfq:low_latency=")
    assert {"vio", "none"} <= ask(shell, "seekway ctl prefetch ")
    assert "seagate-1tb-7200" in ask(shell, "seekway compare --device sea")
    assert "vmigrater" in ask(shell, "seekway compare --vcpu vm")
    assert "doctor" in ask(shell, "seekway do")


def test_a_daemon_that_is_dead_or_hangs_costs_no_time_and_no_words(
    ask: Callable[[str, str], set[str]], tmp_path: Path
) -> None:
    need("bash")

    def words(path: Path) -> set[str]:
        """Proposals besides options."""
        proposed = ask("bash", f"seekway ctl --socket {path} weight ")
        return {word for word in proposed if not word.startswith("--")}

    assert words(tmp_path / "absent.sock") == set()
    path = tmp_path / "hangs.sock"
    with socket.socket(socket.AF_UNIX) as hangs:
        hangs.bind(str(path))
        # Nobody accepts; then not even a connection is queued.
        hangs.listen(0)
        clients = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(str(path))
        assert words(path) == set()
        for client in clients:
            client.close()
        # One that is queued and never answered.
        assert words(path) == set()
