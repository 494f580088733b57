"""The commands of the documentation's pages: found, taken apart, and run with the files that they
name.

A page's commands are the ```sh blocks; `seekway …` in `code` within a sentence is only parsed. How
a command is treated follows from what it is, not from a list of commands:

- Every `seekway …` is parsed: with `--help` at its end the program reads all arguments before it,
  refuses an option that it does not have, and does nothing else.
- A line runs if its programs are in RUN and installed, and if it names no place of the host and no
  other host. It runs in a folder of its page, with inputs made for the names in it; `serve` with
  `--check-config`, `ctl` and `top` with a daemon of the page. What takes too long is stopped: it
  has begun, so its arguments are right.
- A comment `<!-- not run: REASON -->` before a block keeps it from being run; it is
  hidden from readers.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conftest import ROOT

# A line that takes longer is stopped, in seconds; those of the second kind take minutes.
LIMIT_S = 4
LIMIT_LONG_S = 1.5
LONG = re.compile(r"seekway predict --live\b")
# Programs that act on nothing but the files of the page's folder.
RUN = {"seekway", "awk", "echo", "cp", "truncate", "jq", "grep", "socat", "duckdb", "curl"}
RUN |= {"openssl", "nbdinfo", "nbdcopy", "fio", "qemu-img"}
# In place of the exit status of a stopped command.
STOPPED = 124
# Places of a host that stand for others in a page's folder.
PLACES = ("/run/seekway", "/srv/images", "/images", "/dev/sdb", "/etc/pki/backup")
# Disks of a page's daemon, and a group.
DISKS = ["web", "db", "a", "b", "vm1", "vm2"]
GROUP = "tenant1"

BLOCK = re.compile(r"(?:^<!-- not run: (.*?) -->\n)?^```sh\n(.*?)^```$", re.M | re.S)
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
# Words of a script, whose lines cannot run alone.
SCRIPT = re.compile(r"^\s*(?:for|until|while|case|if)\b|<<|\$[({\w!]", re.M)
INLINE = re.compile(r"`((?:seekway|seekway-guest) [^`\n]+)`")
FILE = re.compile(r"[\w./-]+\.(?:vscsi|csv|trace|load\.gz|toml|img|raw|qcow2|pem)")
OUTPUTS = {"--report", "--profile", "--out", "--journal"}


def shells(word: str) -> bool:
    """Is a word the shell's business?"""
    return word.startswith("$") or re.match(r"\d?[<>]", word) is not None


@dataclass(frozen=True)
class Line:
    """A line of a block, joined where `\\` or `|` continues it."""

    page: str
    text: str
    # Why it must not run, if the page says so.
    kept: str | None = None

    def words(self) -> list[str]:
        """Its words and operators, without the comment; none if the shell would want more lines."""
        lexer = shlex.shlex(self.text, posix=True, punctuation_chars="|&;()")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        try:
            words = list(lexer)
        except ValueError:
            return []
        # `> file` is one word, as `>file` is.
        for at in range(len(words) - 2, -1, -1):
            if words[at] in (">", ">>", "<", "2>"):
                words[at : at + 2] = ["".join(words[at : at + 2])]
        return words

    def commands(self) -> list[list[str]]:
        """The simple commands of the line, each as words."""
        commands: list[list[str]] = [[]]
        for word in self.words():
            if set(word) <= set("|&;()"):
                commands.append([])
            elif commands[-1] or not re.match(r"^\w+=", word):
                commands[-1].append(word)
        # Redirections, and words that only the shell can expand, are no arguments.
        commands = [[w for w in command if not shells(w)] for command in commands]
        return [command for command in commands if command]

    def is_ours(self) -> bool:
        """Is it a command of ours alone?"""
        return [command[0] for command in self.commands()] == ["seekway"]


def lines(page: Path) -> Iterator[Line]:
    """The lines of a page's blocks."""
    name = str(page.relative_to(ROOT))
    for kept, block in BLOCK.findall(page.read_text()):
        if not kept and SCRIPT.search(block):
            kept = "a part of a script"
        for text in re.sub(r"\\\n|(?<=\|)\n", " ", block).splitlines():
            if text.strip() and not text.lstrip().startswith("#"):
                yield Line(name, " ".join(text.split()), kept or None)


def wrong_syntax(page: Path) -> list[str]:
    """The shell's complaints about a page's blocks."""
    said = []
    for _, block in BLOCK.findall(page.read_text()):
        ran = subprocess.run(["bash", "-n", "-c", block], capture_output=True, text=True)
        if ran.returncode != 0 or ran.stderr:
            said.append(f"{page.relative_to(ROOT)}: {block}\n{ran.stderr}")
    return said


def inline(page: Path) -> Iterator[list[str]]:
    """The commands in a page's sentences, as words, without the `[` `]` around what is optional."""
    for text in INLINE.findall(FENCE.sub("", page.read_text())):
        found = Line("", re.sub(r"[\[\]…]", " ", text)).commands()
        yield from found[:1]


def unescaped(man: str) -> str:
    """The blocks of a man page that are not filled, without roff's escapes: the examples."""
    blocks = "".join(re.findall(r"^\.nf\n(.*?)^\.fi$", man, re.M | re.S))
    return blocks.replace("\\-", "-").replace("\\*(Aq", "'").replace("\\\\", "\\")


class Parser:
    """Asks the programs themselves whether they would take a command's arguments."""

    def __init__(self, programs: dict[str, str]) -> None:
        self.programs = programs
        self.known: dict[tuple[str, ...], str] = {}

    def complaint(self, command: list[str], literal: bool = True) -> str:
        """The program's complaint about the command, or nothing. Where the values are not meant
        literally (NAME, N), only options and subcommands are looked at."""
        if command[0] not in self.programs:
            return ""
        end = command.index("--") if "--" in command else len(command)
        asked = (*command[1:end], "--help")
        if asked not in self.known:
            program = self.programs[command[0]]
            ran = subprocess.run(
                [program, *asked], capture_output=True, text=True, stdin=subprocess.DEVNULL
            )
            self.known[asked] = "" if ran.returncode == 0 else ran.stderr.strip()
        said = self.known[asked]
        if literal or re.search("unexpected argument '-|unrecognized subcommand", said):
            return said
        return ""


class Folder:
    """A page's folder: its inputs, its programs, its daemon's sockets."""

    def __init__(self, path: Path, run: Path, seekway: str, venv: Path) -> None:
        self.path = path
        self.run = run
        self.seekway = seekway
        self.venv = venv
        for made in [path / "bin", path / "images", path / "traces"]:
            made.mkdir(parents=True)
        shim = path / "bin" / "seekway"
        shim.write_text(
            f"""#!/bin/sh
case "$1 $*" in
"serve "*) exec {seekway} "$@" --check-config ;;
*--socket*) exec {seekway} "$@" ;;
"ctl "* | "top "*) name=$1; shift; exec {seekway} $name --socket {self.run}/control.sock "$@" ;;
*) exec {seekway} "$@" ;;
esac
"""
        )
        shim.chmod(0o755)
        for trace in ["a.vscsi", "b.vscsi"]:
            self.write_trace(path / "traces" / trace)
        (path / "sdb").write_bytes(os.urandom(16 << 20))

    def local(self, text: str) -> str:
        """A line with the places of a real host moved into the folder."""
        for place in PLACES:
            local = self.run if place == "/run/seekway" else self.path / place.rsplit("/", 1)[1]
            text = re.sub(rf"(?<![\w/.]){place}(?!\w)", str(local), text)
        # Few file systems of test machines have reflinks.
        return text.replace("--reflink=always", "--reflink=auto")

    def write_trace(self, path: Path) -> None:
        """A trace of 500 reads and writes, 50 ms apart, in the format that its name says."""
        rows = [(n * 50, n * n * 7919 % 100_000 * 8, n % 4 == 0) for n in range(500)]
        match path.suffix:
            case ".csv":  # MSR: 100 ns since 1601, host, disk, type, offset, bytes, response
                epoch = 128_166_372_000_000_000
                text = [
                    f"{epoch + ms * 10_000},vm,0,{'Write' if w else 'Read'},{s * 512},4096,1000"
                    for ms, s, w in rows
                ]
            case ".gz":  # blkreplay
                text = ["start ; sector; length ; op ;  replay_delay=0 ; replay_duration=0"]
                text += [
                    f"{ms / 1e3:.9f} ; {s} ; 8 ; {'W' if w else 'R'} ; 0 ; 0" for ms, s, w in rows
                ]
                path.write_bytes(gzip.compress(("\n".join(text) + "\n").encode()))
                return
            case _:  # DiskSim: ms, device, block, blocks, read
                text = [f"{ms}.0 0 {s} 8 {int(not w)}" for ms, s, w in rows]
        path.write_text("\n".join(text) + "\n")

    def make_inputs(self, words: list[str]) -> None:
        """Make the files that a line reads and that are not there yet."""
        for before, word in zip(["", *words], words, strict=False):
            if before in OUTPUTS or shells(word):
                continue
            for name in FILE.findall(word):
                path = self.path / name
                if path.exists() or not path.is_relative_to(self.path):
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                self.make(path)

    def make(self, path: Path) -> None:
        """Make one input, by the end of its name."""
        if path.suffix in (".img", ".raw", ".qcow2"):
            with path.open("wb") as image:
                image.truncate(16 << 20)
        elif path.suffix == ".pem":
            shutil.copy(self.certificate(), path)
        elif (known := ROOT / path.relative_to(self.path)).is_file():
            shutil.copy(known, path)
        elif path.name == "study.toml":
            text = (ROOT / "docs" / "campaigns.md").read_text()
            (study,) = re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S)
            path.write_text(study)
        elif path.suffix == ".toml":
            path.write_text(self.output("list", "devices", "cheetah-15k5"))
        else:
            self.write_trace(path)

    def output(self, *arguments: str) -> str:
        """The program's output."""
        command = [self.seekway, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def certificate(self) -> Path:
        """A file with a key and a certificate of its own authority."""
        both = self.path / "both.pem.made"
        if not both.exists():
            command = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=host -keyout - -out -"
            made = subprocess.run(command.split(), check=True, capture_output=True)
            both.write_bytes(made.stdout)
        return both

    def run_line(self, line: Line) -> tuple[int, str]:
        """Run a line; its exit status (STOPPED if it took too long), and what it printed."""
        text = self.local(line.text).rstrip("& ")
        self.make_inputs(Line("", text).words())
        path = f"{self.path}/bin:{os.environ['PATH']}:{self.venv}"
        process = subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", text],
            cwd=self.path,
            env={**os.environ, "PATH": path, "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            limit_s = LIMIT_LONG_S if LONG.search(text) else LIMIT_S
            out, _ = process.communicate(timeout=limit_s)
            return process.returncode, out.decode(errors="replace")
        except subprocess.TimeoutExpired:
            return STOPPED, ""
        finally:
            # Processes that the line has left in the background.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def why_not(line: Line, venv: Path) -> str | None:
    """Why a line is not run here, if it is not."""
    if line.kept:
        return line.kept
    path = f"{os.environ['PATH']}:{venv}"
    for command in line.commands():
        program = command[0]
        # `freeze DISK -- COMMAND…`
        started = (
            {program, *command[command.index("--") + 1 :][:1]} if "--" in command else {program}
        )
        for other in sorted(started - RUN):
            return f"{other} acts on more than a folder"
        if program != "seekway" and shutil.which(program, path=path) is None:
            return f"no {program} here"
    for word in line.words():
        for place in re.findall(r"(?<![\w.:/*])/[\w.-]+(?:/[\w.-]+)*", word):
            if not place.startswith(PLACES):
                return f"it names {place}"
        for host in re.findall(r"://([\w.]+)", word):
            return f"it names the host {host}"
    return None
