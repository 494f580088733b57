"""The other commands return the command line's output."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import seekway


def test_lists_are_the_command_lines(command_line: str) -> None:
    for listed, what in (
        (seekway.devices(), "devices"),
        (seekway.policies(), "policies"),
    ):
        line = [command_line, "list", what, "--format=json"]
        assert listed == json.loads(subprocess.run(line, check=True, capture_output=True).stdout)


def test_one_of_each() -> None:
    for entry in seekway.devices():
        assert seekway.device(entry["name"])
    for entry in seekway.policies():
        assert entry["name"] in seekway.policy(entry["name"])
    with pytest.raises(seekway.SeekwayError, match="nope"):
        seekway.device("nope")


def test_a_profile_is_fitted_to_a_measured_drive(traces: Path, tmp_path: Path) -> None:
    measured = next((traces / "drives").glob("*/*.trace"))
    profile = tmp_path / "fitted.toml"
    fit = seekway.calibrate(measured, profile=profile, as_="trace")
    assert fit and profile.exists()
    vm = "app=sysbench:mode=RR"
    assert seekway.compare(vms=vm, device=str(profile), policies="noop", until="1s").runs


def test_prediction_and_advice(traces: Path) -> None:
    trace = traces / "samples" / "tpcc-small.trace"
    options = {"max_time": "1s", "capacity": "100GiB"}
    found = seekway.predict(trace, on="intel-320", policies=["noop", "cfq"], **options)
    assert found
    server = traces / "host" / "linux-mysql.load.gz"
    advice = seekway.advise(server, for_="latency", max_requests=300)
    assert advice["recommend"] in [entry["name"] for entry in seekway.policies()]


def test_a_trace_is_inspected(traces: Path) -> None:
    tpcc, server = seekway.inspect(
        [traces / "samples" / "tpcc-small.trace", traces / "host" / "linux-mysql.load.gz"], split=3
    )
    assert tpcc["requests"] == 6999 and server["requests"] == 80_794
    assert [len(tpcc["by_volume"]), tpcc["other_volumes"] is None] == [3, tpcc["volumes"] <= 3]


def test_a_model_is_measured_as_a_drive_is() -> None:
    fit = seekway.fit_model("linear-15k4", reads=2000)
    assert fit["intercept_ms"] == pytest.approx(4.25, rel=0.01)
    assert fit["stroke_ms"] == pytest.approx(5.25, rel=0.01)
    assert fit["hit_ms"] == 0.25 and "[linear]" in fit["profile"]
    ahead = seekway.read_ahead("linear-15k4:on_hit=keep,prefetch_sectors=32")
    assert ahead == {"sectors": 32, "after_hits": False, "when_idle": False}
    with pytest.raises(seekway.SeekwayError, match="nothing"):
        seekway.fit_model("nothing")
