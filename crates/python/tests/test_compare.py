"""A comparison gives the command line's figures, and ends when it is told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pyarrow
import pytest
import seekway

VMS = ["name=a,app=sysbench:mode=RR", "name=b,app=sysbench:mode=SR"]


def printed(program: str, *arguments: str) -> str:
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout


def without_clock(run: dict) -> dict:
    return {key: value for key, value in run.items() if key != "wall_s"}


@pytest.mark.parametrize(
    "given",
    [
        {"vms": VMS, "policies": ["noop", "cfq:slice_idle=4ms", "fairway"], "until": "3s"},
        {"vms": VMS, "policies": "all", "until": "1s", "seeds": 2, "device": "intel-320"},
        {"vms": VMS, "policies": ["noop"], "until": "2s", "cache": ["none", "64MiB"]},
        {"vms": VMS, "policies": ["pregather"], "until": "2s", "seeds": range(7, 9)},
    ],
)
def test_figures_are_the_command_lines_to_the_bit(command_line: str, given: dict) -> None:
    made = seekway.compare(**given)
    line = json.loads(printed(command_line, "compare", *made.arguments, "--format=json"))
    assert made.device == line["device"]
    assert [without_clock(run) for run in made.runs] == [without_clock(r) for r in line["runs"]]
    assert made.to_csv() == printed(command_line, "compare", *made.arguments, "--format=csv")


def test_a_real_trace(command_line: str, traces: Path) -> None:
    trace = traces / "samples" / "tpcc-small.trace"
    made = seekway.compare(trace, policies=["noop", "cfq"], device="intel-320", capacity="9GiB")
    line = json.loads(printed(command_line, "compare", *made.arguments, "--format=json"))
    assert [without_clock(run) for run in made.runs] == [without_clock(r) for r in line["runs"]]


def test_requests_are_those_that_the_run_counted() -> None:
    made = seekway.compare(vms=VMS, policies=["noop", "cfq"], until="2s")
    for number, run in enumerate(made.runs):
        requests = made.requests(number).to_arrow()
        data = requests.filter(
            pyarrow.compute.is_in(requests["op"], pyarrow.array(["read", "write"]))
        )
        assert len(data) == run["requests"]
        took = pyarrow.compute.subtract(data["completed_ns"], data["submitted_ns"])
        mean_ms = pyarrow.compute.mean(took).as_py() / 1e6
        assert mean_ms == pytest.approx(run["response_ms"]["mean"], rel=1e-3)
        for vm in run["vms"]:
            own = pyarrow.compute.equal(data["vm"], vm["name"])
            assert pyarrow.compute.sum(own).as_py() == vm["requests"]


def test_requests_reach_arrow_without_a_copy() -> None:
    requests = seekway.compare(vms=VMS, policies="noop", until="1s").requests()
    first, second = requests.to_arrow(), requests.to_arrow()

    def places(table: pyarrow.Table) -> list[int]:
        chunk = table["start_sector"].chunk(0)
        return [buffer.address for buffer in chunk.buffers() if buffer]

    assert places(first) == places(second), "two readers see the same memory"
    polars = pytest.importorskip("polars")
    assert polars.DataFrame(requests).height == len(requests)


def test_tables_of_all_kinds() -> None:
    made = seekway.compare(vms=VMS, policies=["noop", "cfq"], until="1s")
    assert [row["policy"] for row in made.table] == ["noop", "cfq"]
    assert made.to_arrow().num_rows == 6, "for each run: all VMs, and each of two"
    assert list(made.to_pandas()["vm"]) == ["all", "a", "b"] * 2
    assert made.to_polars().height == 6
    assert "<table>" in made._repr_html_() and "noop" in repr(made)
    assert len(made.plot().axes) == 2


def test_reads_and_writes_are_told_apart() -> None:
    vms = ["name=a,app=uniform:read=70,requests=200", "name=b,app=uniform:requests=200"]
    made = seekway.compare(vms=vms, policies="noop", until="1s")
    (run,), (row,) = made.runs, made.table
    for op in ("read", "write"):
        assert row[f"{op}_p99_ms"] == run[f"{op}s"]["response_ms"]["p99"]
        assert f"{op} p99 ms" in repr(made) and f"{op} p99, ms" in made._repr_html_()
    table = made.to_arrow().to_pylist()
    assert [line["write_mib_s"] for line in table[:2]] == [
        run["writes"]["mib_s"],
        run["vms"][0]["writes"]["mib_s"],
    ]
    assert (run["vms"][1]["writes"], table[2]["write_mib_s"]) == (None, None)
    only = seekway.compare(vms=vms[1], policies="noop", until="1s")
    assert only.table[0]["write_p99_ms"] is None and "write" not in repr(only)


def test_a_page_is_written(tmp_path: Path) -> None:
    page = tmp_path / "made.html"
    seekway.compare(vms=VMS, policies="noop", until="1s").to_html(page)
    assert page.read_text().startswith("<!doctype html>") or "<html" in page.read_text()


def test_a_damaged_trace_says_where(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.csv"
    rows = [f"{128166372003061629 + 10_000 * n},host,0,Read,{n * 4096},4096,100" for n in range(30)]
    rows[20] = "128166372003061629,host,0,Read,x,4096,100"
    damaged.write_text("\n".join(rows) + "\n")
    with pytest.raises(seekway.TraceError) as raised:
        seekway.compare(damaged, policies="noop")
    error = raised.value
    assert (error.path, error.line, error.column) == (str(damaged), 21, 32)
    assert str(damaged) + ":21:32" in str(error)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"vms": "x"}, "is not key=value"),
        ({"vms": VMS, "policies": "nope"}, "no policy 'nope'"),
        ({"vms": VMS, "until": "5x"}, "expected a time"),
        ({"vms": VMS, "device": "nope"}, "nope"),
        ({"vms": VMS, "seeds": [1, 3]}, "consecutive"),
        ({"vms": VMS, "unknown": 1}, "--unknown"),
        ({"vms": VMS, "format": "json"}, "not an option here"),
        ({"vms": VMS, "trace": "x"}, "it is called traces"),
        ({}, "nothing to run"),
        ({"traces": "/nonexistent"}, "/nonexistent"),
    ],
)
def test_wrong_arguments_are_exceptions(given: dict, says: str) -> None:
    with pytest.raises(seekway.SeekwayError, match=says):
        seekway.compare(**given)


def test_ctrl_c_ends_a_comparison() -> None:
    """The signal comes when the first requests are done; the run would take hours.

    A shell that starts the tests in the background has SIGINT ignored: Python's own handler is
    set first.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    told = threading.Event()

    def tell(done: int, total: int | None) -> None:
        if done and not told.is_set():
            told.set()
            os.kill(os.getpid(), signal.SIGINT)

    arguments = ["--vm=app=webserver", "--policies=noop", "--until=100000h"]
    try:
        with pytest.raises(KeyboardInterrupt):
            seekway._native.compare(arguments, [], tell)
    finally:
        signal.signal(signal.SIGINT, before)
    assert told.is_set()


def test_the_lock_is_released() -> None:
    """Another thread of Python runs while a comparison does."""
    running, stop = threading.Event(), threading.Event()
    seen: list[int] = []

    def tell(done: int, total: int | None) -> None:
        running.set()
        if len(seen) > 100:
            stop.set()
            raise EndOfTest

    def count() -> None:
        running.wait()
        while not stop.is_set():
            seen.append(len(seen))

    thread = threading.Thread(target=count)
    thread.start()
    arguments = ["--vm=app=webserver", "--policies=noop", "--until=100000h"]
    with pytest.raises(EndOfTest):
        seekway._native.compare(arguments, [], tell)
    thread.join()


class EndOfTest(Exception):
    pass
