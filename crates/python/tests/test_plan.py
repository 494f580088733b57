"""Plans: as few disks as exhaustive search finds, and never fewer than the lower bound."""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import seekway
from seekway.campaign.run import cluster
from seekway.planning import Plan, Target, _Planner, _policies, plan


def write_vms(folder: Path, count: int, seed: int) -> list[Path]:
    """Traces of 300 requests each: some at random over the disk, some in sequence."""
    chance = random.Random(seed)
    files = []
    for n in range(count):
        gap_us, spread = chance.choice([8000, 15000, 30000, 60000]), chance.choice([64, 1 << 24])
        rows, at, lba = [], 0, 0
        for _ in range(300):
            at += int(gap_us * 1000 * chance.uniform(0.5, 1.5))
            lba = chance.randrange(spread) * 8 if spread > 64 else lba + 8
            rows.append(f"{at} 0 {lba} 8 1")
        path = folder / f"vm{n}.trace"
        path.write_text("\n".join(rows) + "\n")
        files.append(path)
    return files


def partitions(items: list[int]):
    """All ways to divide items into sets."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for parts in partitions(rest):
        for n in range(len(parts)):
            yield [*parts[:n], parts[n] | {first}, *parts[n + 1 :]]
        yield [*parts, frozenset([first])]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_as_few_disks_as_exhaustive_search(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    files = write_vms(tmp_path, 6, seed)
    target, out = "p99<40ms", tmp_path / "out"
    disk = "seagate-1tb-7200"
    made = plan(files, device=disk, target=target, policies=["noop", "cfq"], out=out, workers=2)
    bound = Target.parse(target)
    with cluster(2) as client:
        names = [str(file) for file in files]
        planner = _Planner(names, made.device, bound, out, client, [])
        for one in made.policies:
            able = [n for n, name in enumerate(planner.names) if name not in one.cannot]
            sets = [frozenset(n for n in able if mask >> n & 1) for mask in range(1, 64)]
            planner.simulate(one.policy, sets)
            fitting = (p for p in partitions(able) if all(planner.fits(one.policy, d) for d in p))
            fewest = min(len(p) for p in fitting)
            assert one.lower_bound <= fewest == len(one.disks)
            for disk in one.disks:
                numbers = frozenset(planner.names.index(vm) for vm in disk)
                figures = planner.known[one.policy, numbers]
                assert all(one.figures[planner.names[n]] == ms for n, (_, ms) in figures.items())
                assert max(ms for _, ms in figures.values()) < 40


def test_figures_are_those_of_compare(tmp_path: Path) -> None:
    files = write_vms(tmp_path, 3, 4)
    made = plan(files, target="mean<1s", policies="noop", workers=1)
    assert made.policies[0].disks == [["vm0", "vm1", "vm2"]]
    run = seekway.compare(files, policies="noop", alone="never").runs[0]
    expected = {vm["name"]: vm["response_ms"]["mean"] for vm in run["vms"]}
    assert made.policies[0].figures == expected
    assert len(made.policies[0].suffering()) == 3
    assert "vm0 (" in str(made) and "write p99" not in str(made), "they only read"


def test_reads_and_writes_are_told_apart(tmp_path: Path) -> None:
    (reader,) = write_vms(tmp_path, 1, 4)
    both = tmp_path / "both.trace"
    lines = reader.read_text().splitlines()
    turned = [line if n % 3 else f"{line[:-1]}0" for n, line in enumerate(lines)]
    both.write_text("\n".join(turned) + "\n")
    made = plan([reader, both], target="mean<1s", policies="noop", workers=1)
    run = seekway.compare([reader, both], policies="noop", alone="never").runs[0]
    (policy,) = made.policies
    for vm in run["vms"]:
        found = policy.operations[vm["name"]]
        for op in ("read", "write"):
            served = vm[f"{op}s"]
            assert found[f"{op}s"] == (served and served["requests"])
            assert found[f"{op}_iops"] == (served and served["iops"])
            assert found[f"{op}_p999_ms"] == (served and served["response_ms"]["p999"])
    assert policy.operations["both"]["writes"] == 100
    assert f"write p99 {policy.operations['both']['write_p99_ms']:.3g} ms" in str(made)
    assert json.loads(made.to_json())["policies"][0]["operations"] == policy.operations


def test_reads_and_writes_have_targets_of_their_own(tmp_path: Path) -> None:
    (reader,) = write_vms(tmp_path, 1, 4)
    writer = tmp_path / "writer.trace"
    writer.write_text("".join(f"{line[:-1]}0\n" for line in reader.read_text().splitlines()))
    given = {"policies": "noop", "workers": 1, "device": "seagate-1tb-7200:write_cache=false"}
    made = plan([reader, writer], target="read p99<1s, write p99<1us", **given)
    (policy,) = made.policies
    assert str(made.target) == "read p99<1000ms, write p99<0.001ms"
    assert (policy.disks, policy.cannot) == ([["vm0"]], ["writer"])
    assert policy.figures["vm0"] == policy.operations["vm0"]["read_p99_ms"]
    # Bounds of what a VM does not do are kept.
    made = plan([reader, writer], target="write p99<1s", **given)
    assert made.policies[0].figures["vm0"] == 0
    rows = list(csv.DictReader(made.to_csv().splitlines()))
    assert [(row["vm"], row["disk"], row["reads"]) for row in rows] == [
        ("vm0", "1", "300"),
        ("writer", "1", ""),
    ]
    found = made.policies[0].figures["writer"]
    assert found == float(rows[1]["figure_ms"]) == float(rows[1]["write_p99_ms"])


def test_what_no_disk_carries(tmp_path: Path) -> None:
    files = write_vms(tmp_path, 3, 1)
    made = plan(files, target="max<1us", policies="noop", workers=1)
    assert isinstance(made, Plan)
    assert made.policies[0].cannot == ["vm0", "vm1", "vm2"] and made.policies[0].disks == []
    assert "too slow even alone" in str(made)
    assert "nan" not in str(made)


@pytest.mark.parametrize(
    "text",
    ["", "p99", "p98<1ms", "p99<0ms", "p99<5", "p99>5ms", "p99<-5ms", "p99<1s,", "trim p99<1s"],
)
def test_wrong_targets(text: str) -> None:
    with pytest.raises(seekway.SeekwayError, match="expected for example p99<20ms"):
        Target.parse(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("p99<20ms", 20),
        ("mean < 1.5 s", 1500),
        ("max<2h", 7.2e6),
        ("p50<7us", 0.007),
        ("read p999 < 1ms", 1),
    ],
)
def test_times_of_targets_are_written_as_elsewhere(text: str, ms: float) -> None:
    target = Target.parse(text)
    assert [bound.ms for bound in target.bounds] == [ms]
    assert Target.parse(str(target)) == target


def test_policies_keep_their_parameters() -> None:
    listed = ["noop", "cfq:quantum=4,slice_idle=0", "look"]
    assert _policies(",".join(listed)) == listed


def test_the_command(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    write_vms(folder, 2, 1)

    def call(*arguments: object) -> subprocess.CompletedProcess:
        line = [sys.executable, "-m", "seekway", "plan", *map(str, arguments)]
        return subprocess.run(line, capture_output=True, text=True)

    given = ["--traces", folder, "--policies", "noop", "--workers", 1]
    ran = call(*given, "--target", "p99<1s", "--format", "json", "--max-requests=50")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["policies"][0]["disks"] == [["vm0", "vm1"]]
    assert call(*given, "--target", "max<1us").returncode == 1
    assert call(*given, "--target", "fast").returncode == 2
    assert call("--traces", tmp_path / "absent", "--target", "p99<1s").returncode == 2
