"""scripts/mqsim, which puts the flash model beside MQSim: its parts without MQSim, and all of it
where SEEKWAY_MQSIM names a copy of MQSim's source."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest
import tomllib
from conftest import ROOT

SCRIPT = ROOT / "scripts" / "mqsim"


@pytest.fixture(scope="module")
def mqsim() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("mqsim", str(SCRIPT))
    spec = importlib.util.spec_from_loader("mqsim", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mqsim"] = module
    loader.exec_module(module)
    return module


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_says_what_it_needs_and_how_it_ends() -> None:
    said = run("--help")
    assert said.returncode == 0
    assert "github.com/CMU-SAFARI/MQSim" in said.stdout and "Exits with 0" in said.stdout


def test_a_folder_that_is_not_mqsim_is_refused(tmp_path: Path) -> None:
    said = run(tmp_path, "--out", tmp_path / "out")
    assert said.returncode == 2
    assert "is not MQSim's source: no src/main.cpp" in said.stderr


def test_both_programs_have_the_same_drive(mqsim: ModuleType, tmp_path: Path) -> None:
    for drive in (mqsim.LARGE, mqsim.SMALL):
        ours = tomllib.loads(mqsim.profile(drive))["ssd"]
        theirs = {e.tag: e.text for e in ET.fromstring(mqsim.configuration(drive, "both")).iter()}
        dies = int(theirs["Flash_Channel_Count"]) * int(theirs["Chip_No_Per_Channel"])
        assert ours["channels"] * ours["dies_per_channel"] == dies
        assert ours["page_kib"] << 10 == int(theirs["Page_Capacity"])
        assert ours["block_pages"] == int(theirs["Page_No_Per_Block"])
        # One command more on the channel, which MQSim counts apart.
        for key, name in [("read", "Page_Read_Latency_LSB"), ("erase", "Block_Erase_Latency")]:
            assert 0 <= ours[f"{key}_us"] * 1e3 - int(theirs[name]) < 1_000
        sectors = int(theirs["Block_No_Per_Plane"]) * ours["block_pages"] * dies * 16
        share = 1 - float(theirs["Overprovisioning_Ratio"])
        assert abs(ours["capacity_sectors"] / (sectors * share) - 1) < 1e-4
        assert theirs["CMD_Suspension_Support"] == "PROGRAM_ERASE"


def test_response_times_are_read_from_both(mqsim: ModuleType) -> None:
    each = "".join(f"R {at} {at * 1000}\n" for at in range(1, 101)) + "W 7 2500\n"
    assert mqsim.requests(each) == {"R": (50.5, 99.0), "W": (2.5, 2.5)}
    journal = [
        "seekway-journal 2 policy=noop",
        "1000 submit 0 R sync 0+16 tag=0 token=3",
        "1000 submit 0 W async 16+16 tag=0 token=4",
        "3000 io 4 ok",
        "3000 done 4 ok",
        "9000 done 3 ok",
    ]
    assert mqsim.journal(journal) == {"R": (8.0, 8.0), "W": (2.0, 2.0)}


def test_traces_are_the_same_for_a_seed_and_fit_the_drive(mqsim: ModuleType) -> None:
    rows = mqsim.poisson(mqsim.LARGE, 1, 2_000, 3_000, 1_000, 0.5)
    assert rows == mqsim.poisson(mqsim.LARGE, 1, 2_000, 3_000, 1_000, 0.5)
    assert rows != mqsim.poisson(mqsim.LARGE, 2, 2_000, 3_000, 1_000, 0.5)
    assert sorted(rows) == rows
    assert max(row[2] + row[3] for row in rows) <= mqsim.LARGE.capacity // 2
    assert 0.7 < sum(row[1] == "R" for row in rows) / 2_000 < 0.8
    written: set[int] = set()
    for _, op, sector, _ in mqsim.only_written(rows):
        assert op == "W" or sector in written
        written.add(sector)


def test_one_read_alone_takes_as_long_in_both(seekway: str, tmp_path: Path) -> None:
    folder = os.environ.get("SEEKWAY_MQSIM")
    if folder is None:
        pytest.skip("MQSim's source, which SEEKWAY_MQSIM names")
    command = [SCRIPT, folder, "--out", tmp_path, "--only", "alone,mixed", "--requests", "5000"]
    same = subprocess.run([*command, "--as-published"], check=False)
    assert same.returncode == 0
    environment = os.environ | {"SEEKWAY": seekway}
    both = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert both.returncode == 0, both.stdout + both.stderr
    alone = next(line for line in both.stdout.splitlines() if line.startswith("| alone"))
    mean, ours = (float(cell) for cell in alone.split("|")[4:6])
    assert abs(ours / mean - 1) < 0.01, alone
