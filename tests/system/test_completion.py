"""Completion in real shells: the script of `seekway completions` is loaded, and asked for what a
user would see who presses Tab."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import need

BASH = r"""
eval "$(seekway completions bash)"
COMP_LINE=$1
COMP_POINT=${#COMP_LINE}
# As readline cuts words: at spaces, and at the characters of COMP_WORDBREAKS.
word=${COMP_LINE##*[ :=]}
_seekway seekway "$word" ""
printf '%s\n' "${COMPREPLY[@]}"
"""
FISH = r"""
seekway completions fish | source
complete --do-complete $argv[1]
"""
ZSH = r"""
zmodload zsh/zpty
zpty -w shell 2>/dev/null
zpty shell zsh -f -i
zpty -w shell "PS1= ; autoload -U compinit; compinit -u -d $2"
zpty -w shell 'source <(seekway completions zsh)'
zpty -w shell "zstyle ':completion:*' list-prompt ''; zstyle ':completion:*' verbose no"
zpty -w shell 'LISTMAX=10000; compdef _clap_dynamic_completer_seekway seekway; print rea''dy'
zpty -r shell out '*ready*'
zpty -w -n shell "$1"$'\t'$'\t'
zpty -w -n shell $'\C-U'
zpty -w shell 'print do''ne'
zpty -r shell out '*done*'
print -r -- "$out"
"""


@pytest.fixture
def ask(seekway: str, tmp_path: Path) -> Callable[[str, str], str]:
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
        "zsh": ["zsh", "-f", "-c", ZSH, "zsh"],
    }

    def ask(shell: str, line: str) -> str:
        command = [*commands[shell], line, f"{tmp_path}/zcompdump"]
        asked = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert asked.stderr == "", asked.stderr
        return asked.stdout

    return ask


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_disks_and_devices_of_a_daemon(
    shell: str, ask: Callable[[str, str], str], serve: Any, image: Any
) -> None:
    need(shell)
    daemon = serve(
        "--disk", f"web={image('web')}", "--disk", f"weblog={image('weblog')}", "--cache", "off"
    )
    ctl = f"seekway ctl --socket {daemon.socket('control.sock')}"
    for command in ("weight", "limit", "detach", "resize", "freeze", "thaw", "slow --disk"):
        words = {line.split("\t")[0] for line in ask(shell, f"{ctl} {command} we").split("\n")}
        assert {"web", "weblog"} <= words, (command, words)
    device = daemon.status()["devices"][0]["name"]
    assert device in ask(shell, f"{ctl} policy noop --device ")


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_policies_with_their_parameters(shell: str, ask: Callable[[str, str], str]) -> None:
    need(shell)

    def proposed(line: str) -> set[str]:
        return {line.split("\t")[0].strip() for line in ask(shell, line).split("\n")}

    # Bash replaces only what stands behind a colon or an equals sign.
    head = "" if shell == "bash" else "cfq:"
    assert "fairway" in proposed("seekway ctl policy fair")
    assert f"{head}slice_idle=" in proposed("seekway ctl policy cfq:slice_i")
    head = "" if shell == "bash" else "cfq:low_latency="
    assert {f"{head}true", f"{head}false"} <= proposed("seekway ctl policy cfq:low_latency=")
    assert {"vio", "none"} <= proposed("seekway ctl prefetch ")
    assert "seagate-1tb-7200" in proposed("seekway compare --device sea")
    assert "vmigrater" in proposed("seekway compare --vcpu vm")
    assert "doctor" in proposed("seekway do")


def test_a_daemon_that_is_dead_or_hangs_costs_no_time_and_no_words(
    ask: Callable[[str, str], str], tmp_path: Path
) -> None:
    need("bash")
    assert ask("bash", f"seekway ctl --socket {tmp_path}/absent.sock weight ").strip() == ""
    path = tmp_path / "hangs.sock"
    with socket.socket(socket.AF_UNIX) as hangs:
        hangs.bind(str(path))
        # Nobody accepts; then not even a connection is queued.
        hangs.listen(0)
        clients = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(str(path))
        assert ask("bash", f"seekway ctl --socket {path} weight ").strip() == ""
        for client in clients:
            client.close()
        # One that is queued and never answered.
        assert ask("bash", f"seekway ctl --socket {path} weight ").strip() == ""
