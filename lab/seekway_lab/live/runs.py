"""Parts that all live experiments share: options, void rules, reports, and the command `live`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

from seekway_lab import records
from seekway_lab.live.process import output
from seekway_lab.pages import table
from seekway_lab.records import LabError, Record

ROOT = Path(__file__).resolve().parents[3]
#: Experiments, and the modules of this folder whose `run(options)` makes a `Report`.
EXPERIMENTS = {
    "pregather-read": "pregather",
    "cats-direct": "scenes",
    "vmcd-fair-sizes": "scenes",
    "vpt-rank": "vpt",
    "vpt-scale": "scale",
    "vio-procs": "procs",
    "migrate-live": "migrate",
    "noisy": "noisy",
    "together": "together",
}
#: Those that run the agent in their guests.
AGENTS = ["vio-procs", "migrate-live", "together"]
#: A measurement is void when more of its commands are late: the device was not the one named.
LATE_MAX = 0.01
#: Or when the host had no processor left.
HOST_FULL = 0.95


@dataclass(frozen=True)
class Options:
    """Options of an experiment's run."""

    name: str
    #: The program `seekway`, whose `serve` is run.
    program: Path
    #: The program `seekway-guest`.
    agent: Path
    #: Further policies.
    policy: Sequence[str] = ()
    #: The policy for vCPUs that the agent runs.
    vcpu: str | None = None
    #: Of the loads, and of where files lie.
    seed: int = 1
    #: A short time: shows whether it runs, gives no result.
    quick: bool = False
    kvm: bool = False
    #: Patterns of scenes, with commas.
    scenes: str = "*"
    #: noisy: servers, all if empty; counted seconds; rounds; folder of images on the disk.
    servers: Sequence[str] = ()
    seconds: float | None = None
    rounds: int | None = None
    work_dir: Path | None = None

    def wants(self, scene: str) -> bool:
        """Whether `--scenes` asks for this scene."""
        return any(fnmatchcase(scene, one.strip()) for one in self.scenes.split(","))

    def policies(self, policies: Sequence[str]) -> list[str]:
        """Policies, and the user's own where they are not among them."""
        return list(dict.fromkeys([*policies, *self.policy]))

    def tell(self, text: str) -> None:
        """Says the next step on standard error."""
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Table:
    """A table of the terminal; heads that end with a colon are of numbers."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        notes = "".join(f"\n{note}\n" for note in self.notes)
        return f"## {self.title}\n\n{table(list(self.heads), [list(r) for r in self.rows])}{notes}"


@dataclass(frozen=True)
class Report:
    """Result of an experiment."""

    tables: Sequence[Table]
    #: For --json.
    json: Any
    #: Whether a row is below its target.
    missed: bool = field(default=False, kw_only=True)
    #: Rows that may decide claims of a paper.
    records: Sequence[Record] = field(default=(), kw_only=True)


def number(value: float | None) -> str:
    """A figure for readers: three significant digits, whole from 100 on; a dash for none."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(share: float | None) -> str:
    """A share, 0 to 1, in percent."""
    return "–" if share is None else f"{100 * share:.1f} %"


def too_late(share: float) -> str | None:
    """Why a measurement is void, if this share of its commands, 0 to 1, came too late."""
    text = f"{percent(share)} of the commands later than the device"
    return text if share > LATE_MAX else None


def host_full(busy: float) -> str | None:
    """Why a measurement is void, if this share of the processors' time, 0 to 1, was used."""
    return f"host CPU {100 * busy:.0f} % busy" if busy > HOST_FULL else None


# --- the command


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    add = parser.add_argument
    add("name", metavar="NAME", choices=EXPERIMENTS, help=", ".join(EXPERIMENTS))
    add("--policy", action="append", default=[], metavar="SPEC", help="run this policy too")
    add("--vcpu", metavar="SPEC", help="migrate-live: the policy for vCPUs that the agent runs")
    add("--seed", type=int, default=1, metavar="N", help="of loads, and of where files lie [1]")
    add("--quick", action="store_true", help="for a short time: does it run? Gives no result")
    add("--kvm", action="store_true", help="run the guests by KVM instead of emulating them")
    add("--scenes", default="*", metavar="GLOB", help="noisy: as disk/*,*/writes; together: disks")
    add("--servers", metavar="LIST", help="noisy: only these, such as fairway,throttled")
    add("--seconds", type=float, metavar="S", help="noisy: counted in each measurement [1]")
    add("--rounds", type=int, metavar="N", help="noisy: rounds of each scene [3]")
    add("--work-dir", type=Path, metavar="DIR", help="noisy: images of the disk that is measured")
    about = "the program [$SEEKWAY, or target/release/seekway]"
    add("--daemon", type=Path, default=_built("seekway"), metavar="FILE", help=about)
    about = "the guests' agent [$SEEKWAY_GUEST, or target/release/seekway-guest]"
    add("--agent", type=Path, default=_built("seekway-guest"), metavar="FILE", help=about)
    add("--json", type=Path, metavar="FILE", help="write the rows, with all figures")
    about = "vpt-rank, vpt-scale: record the rows that decide claims, and write the pages"
    add("--write", action="store_true", default=None, help=about)


#: Options that are of some experiments only.
ONLY = {
    "vcpu": ["migrate-live"],
    "write": ["vpt-rank", "vpt-scale"],
    "scenes": ["noisy", "together"],
    **{key: ["noisy"] for key in ("servers", "seconds", "rounds", "work_dir")},
}


def command(args: argparse.Namespace) -> int:
    """Runs the command; its exit status."""
    for option, names in ONLY.items():
        if args.name not in names and getattr(args, option) not in (None, "*"):
            flag = option.replace("_", "-")
            raise LabError(f"--{flag}: for {' and '.join(names)} only")
    if not 0 <= args.seed < 1 << 64:
        raise LabError(f"--seed {args.seed}: 0 to {(1 << 64) - 1}")
    if args.write and args.quick:
        raise LabError("--write: a quick run gives no result")
    _check_program(args.daemon, "seekway", "--daemon")
    _check_policies(str(args.daemon.absolute()), args.policy, args.vcpu)
    if args.name in AGENTS:
        _check_program(args.agent, "seekway-guest", "--agent")
    if args.json:
        args.json.open("a").close()
    given: dict[str, Any] = {key.name: getattr(args, key.name, None) for key in fields(Options)}
    given["program"], given["agent"] = args.daemon.absolute(), args.agent.absolute()
    names = (args.servers or "").split(",")
    given["servers"] = [name.strip() for name in names if name.strip()]
    options = Options(**given)
    # Guests and servers are ended and images removed on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    report: Report = import_module(f"seekway_lab.live.{EXPERIMENTS[args.name]}").run(options)
    print("\n".join(map(str, report.tables)), end="")
    if args.quick:
        print("\nA quick run: not a result.")
    sys.stdout.flush()
    if args.json:
        args.json.write_text(json.dumps(report.json, indent=1, ensure_ascii=False) + "\n")
    if args.write:
        records.replace(args.docs / "experiments" / "results" / "live.csv", report.records)
    return int(report.missed)


def _check_program(file: Path, name: str, flag: str) -> None:
    """Refuses a file that is not the program, before anything runs."""
    if not file.is_file():
        raise LabError(f"{file}: no file: build {name}, or {flag} FILE")
    try:
        done = subprocess.run([file, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise LabError(f"{flag} {file}: {error.strerror}") from error
    if not done.stdout.startswith(f"{name} "):
        raise LabError(f"{flag} {file}: this is not {name}")


def _check_policies(program: str, policies: Sequence[str], vcpu: str | None) -> None:
    """Refuses policies that the program does not know, before anything runs."""
    checks = [["serve", "--check-config", "--listen", ".", "--policy", one] for one in policies]
    if vcpu:
        load = ["--vm", "app=uniform", "--until", "1ms", "--host", "cpus=1", "--vcpu", vcpu]
        checks.append(["compare", *load, "--policies", "noop", "--print-scenario"])
    for check in checks:
        output(program, *check, package="seekway")


def _built(program: str) -> Path:
    """A program of these sources, or the one that the environment names."""
    given = os.environ.get(program.upper().replace("-", "_"))
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    return Path(given) if given else ROOT / target / "release" / program
