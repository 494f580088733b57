"""Holds the commands' JSON to its schemas: each command with --format has a schema and a
sample here, and a key that is in no schema fails.

Unit tests make the schemas of the types that are printed (`make schemas`, docs/json.md)."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conftest import ROOT, need, wait_for

# Left by `scripts/test`, of the same sources as the program.
SCHEMAS = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "schema"
FIXTURES = ROOT / "crates/workload/tests/fixtures"
LOAD = ["--vm", "name=a,app=uniform:outstanding=4,requests=300", "--vm", "name=b,app=uniform"]
TRACE = str(FIXTURES / "vscsi1.vscsi")

# Command lines for each schema that need no daemon. FOLDER is a temporary folder.
SAMPLES: dict[str, list[list[str]]] = {
    "compare": [
        ["compare", *LOAD, "--until", "2s", "--policies", "noop,fairway", "--seeds", "2"],
        # With a cache, limits, an application that ends, and no demands.
        [
            *["compare", "--vm", "name=a,iops=500,app=sysbench:mode=SR", "--until", "2s"],
            *["--policies", "vmcd,cfq", "--cache", "none,64MiB", "--prefetch", "vio"],
            *["--alone", "never"],
        ],
        [
            *["compare", "--vm", "app=sysbench:mode=RR", "--policies", "noop", "--until", "1s"],
            *["--host", "cpus=1", "--vcpu", "vanilla,vmigrater"],
        ],
        # Cases, of which each is a comparison.
        ["compare", str(ROOT / "examples/three-vms.toml"), "--until", "500ms"],
    ],
    "advise": [
        ["advise", "FOLDER/load.trace", "--time-scale", "100"],
        # More than the disk can carry, and two VMs of which one loses.
        ["advise", "FOLDER/load.trace", "FOLDER/load.trace", "--cache", "64MiB"],
    ],
    "inspect": [["inspect", TRACE], ["inspect", TRACE, str(FIXTURES / "msr.csv"), "--split", "1"]],
    "inspect-zones": [
        ["inspect", TRACE, "--zones"],
        ["inspect", TRACE, "--zones", "--at", "1s", "--at", "2s"],
    ],
    "calibrate": [["calibrate", "FOLDER/drive.trace"]],
    "predict": [
        ["predict", *LOAD, "--until", "2s", "--on", "linear-15k4", "--policies", "noop,cfq"],
        [
            *["predict", *LOAD, "--until", "2s", "--on", "linear-15k4", "--policies", "noop,cfq"],
            *["--against", "cheetah-15k5"],
        ],
        ["predict", "--on", "intel-320", "--against", "published"],
        ["predict", "--on", "cheetah-15k5", "--against", "FOLDER/drive.trace"],
    ],
    "list": [
        ["list"],
        *(["list", kind] for kind in ("policies", "prefetchers", "vcpu", "loads", "traces")),
    ],
    "list-devices": [["list", "devices"]],
    "list-entry": [["list", name] for name in ("cfq", "vio", "vmigrater", "vm", "uniform")],
    "list-trace": [["list", "traces", "blktrace"]],
    "list-device": [["list", "devices", name] for name in ("seagate-1tb-7200", "aws-gp3")],
    "load": [
        [
            *["load", "--vm", "image=4m,app=uniform:requests=50", "--on", "FOLDER/disk.img"],
            *["--for", "1s"],
        ]
    ],
    "replay": [["replay", "FOLDER/noop.1.journal"], ["replay", "FOLDER/other.journal"]],
    "doctor": [["doctor"], ["doctor", "--disk", "a=FOLDER/absent.img"]],
}
# Those of a daemon are in their order: each changes something.
DAEMON: list[tuple[str, list[str]]] = [
    ("ctl-status", ["status"]),
    ("ctl-slow", ["slow", "--over", "100us"]),
    ("ctl-policy", ["policy", "cfq"]),
    ("ctl-prefetch", ["prefetch", "vio"]),
    ("ctl-cache", ["cache", "8MiB"]),
    ("ctl-weight", ["weight", "web", "4"]),
    ("ctl-limit", ["limit", "web", "iops=5000,reserve_iops=10,group=t"]),
    ("ctl-freeze", ["freeze", "web"]),
    ("ctl-thaw", ["thaw", "web"]),
    ("ctl-resize", ["resize", "web", "32MiB"]),
    ("ctl-attach", ["attach", "db=FOLDER/disk.img,weight=2"]),
    ("ctl-status", ["status"]),
    ("ctl-detach", ["detach", "db"]),
    ("ctl-status", ["status"]),
]


@pytest.fixture(scope="module", autouse=True)
def schemas() -> None:
    """Make the schemas, unless the tests of the crates did."""
    if not SCHEMAS.exists():
        subprocess.run([ROOT / "scripts/schemas", SCHEMAS], check=True)


def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def hold(name: str, printed: str) -> None:
    """The text is JSON of that schema."""
    errors = list(validator(name).iter_errors(json.loads(printed)))
    shown = [f"{error.json_path}: {error.message[:300]}" for error in errors]
    assert shown == [], f"{SCHEMAS}/{name}.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, seekway: str) -> Path:
    made = tmp_path_factory.mktemp("samples")
    (made / "disk.img").write_bytes(bytes(8 << 20))
    lines = (f"{n * 4_000} 0 {n * n * 7919 % 10_000_000 * 8} 8 {n % 3 // 2}\n" for n in range(300))
    (made / "load.trace").write_text("".join(lines))
    lines = (
        f"R Miss {n * n * 7919 % 10_000_000 * 8} 8 {5000 + n % 7 * 100} 9000\n" for n in range(100)
    )
    (made / "drive.trace").write_text("".join(lines))
    command = [seekway, "compare", *LOAD, "--until", "1s", "--policies", "noop"]
    subprocess.run([*command, "--journal", str(made)], check=True, capture_output=True)
    journal = (made / "noop.1.journal").read_text()
    head, rest = journal.split("\n", 1)
    (made / "other.journal").write_text(head.replace("noop", "sstf") + "\n" + rest)
    return made


@pytest.mark.parametrize("name", SAMPLES)
def test_printed_json_has_its_schema(name: str, seekway: str, folder: Path) -> None:
    for sample in SAMPLES[name]:
        arguments = [argument.replace("FOLDER", str(folder)) for argument in sample]
        ran = subprocess.run(
            [seekway, *arguments, "--format", "json"], capture_output=True, text=True, check=False
        )
        # 1 is a judgement, and has a result too.
        assert ran.returncode in (0, 1), (arguments, ran.stderr)
        hold(name, ran.stdout)


def test_answers_of_a_daemon_have_their_schemas(
    serve: Any, image: Any, folder: Path, seekway: str
) -> None:
    need("nbdcopy")
    web = image("web")
    # Data, and no holes: these are read.
    web.write_bytes(os.urandom(16 << 20))
    group = ["--group", "t:iops=9000"]
    daemon = serve("--disk", f"web={web}", *group, "--cache", "16MiB")
    reads = f"nbd+unix:///web?socket={daemon.socket('web.nbd')}"
    subprocess.run(["nbdcopy", reads, "null:"], check=True, capture_output=True)
    slow = ["slow", "--over", "100us", "--format", "json"]
    wait_for("a request that is kept", lambda: json.loads(daemon.ctl(*slow))["requests"])
    for name, arguments in DAEMON:
        words = [argument.replace("FOLDER", str(folder)) for argument in arguments]
        hold(name, daemon.ctl(*words, "--format", "json"))


def leaves(seekway: str, *command: str) -> list[list[str]]:
    """All commands without commands of their own."""
    text = subprocess.run(
        [seekway, *command, "--help"], capture_output=True, text=True, check=True
    ).stdout
    inside = re.search(r"^Commands:\n((?:  .*\n|\n)+)", text, re.MULTILINE)
    if inside is None:
        return [list(command)]
    names = set(re.findall(r"^  ([a-z]\S*)", inside.group(1), re.MULTILINE)) - {"help"}
    return [leaf for name in sorted(names) for leaf in leaves(seekway, *command, name)]


def test_every_command_with_a_format_has_a_schema_and_a_sample(seekway: str) -> None:
    # Metrics have a format of their own.
    commands = [leaf for leaf in leaves(seekway) if leaf != ["ctl", "metrics"]]
    assert len(commands) > 20
    with_format = []
    for command in commands:
        text = subprocess.run(
            [seekway, *command, "--help"], capture_output=True, text=True, check=True
        ).stdout
        if "--format" in text:
            with_format.append("-".join(command))
    sampled = set(SAMPLES) | {name for name, _ in DAEMON}
    assert set(with_format) <= sampled
    kept = {path.stem for path in SCHEMAS.glob("*.json")}
    assert kept == sampled, "a schema without a sample, or a sample without a schema"


def test_the_schemas_that_are_promised_are_in_the_repository() -> None:
    promised = {path.name: path.read_text() for path in (ROOT / "share/schema").iterdir()}
    assert set(promised) == {"compare.json", "ctl-status.json"}
    assert promised == {name: (SCHEMAS / name).read_text() for name in promised}


def test_a_new_key_is_noticed() -> None:
    entry = {"kind": "policy", "name": "a", "summary": "b", "params": []}
    assert validator("list").is_valid([entry])
    assert not validator("list").is_valid([{**entry, "new": 1}])
    assert not validator("list").is_valid([{"name": "a"}])
