"""Traces as Arrow, CSV and Parquet."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import duckdb
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest
import seekway
from seekway._arguments import traces_of

SAMPLES = [
    "vm/cloudPhysicsIO.vscsi",
    "host/linux-mysql.load.gz",
    "samples/msr-cambridge1-sample.csv",
    "samples/systor17-additional-sample.csv.gz",
    "samples/cloud_storage-sample.bz2",
    "samples/tpcc-small.trace",
]


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_comes_back(traces: Path, tmp_path: Path, name: str) -> None:
    trace = seekway.read_trace(traces / name)
    parquet, copy = tmp_path / "copy.parquet", tmp_path / "copy.csv.gz"
    count = seekway.write_trace(trace, parquet)
    assert seekway.write_trace(parquet, copy) == count
    first = trace.to_arrow().to_pydict()
    assert len(first["op"]) == count
    assert seekway.read_trace(copy).to_arrow().to_pydict() == first
    assert pyarrow.parquet.read_table(parquet).to_pydict() == first


def test_convert_and_write_trace_give_the_same_figures(
    traces: Path, tmp_path: Path, command_line: str
) -> None:
    source = traces / "vm" / "cloudPhysicsIO.vscsi"
    converted, written = tmp_path / "converted.csv", tmp_path / "written.csv"
    subprocess.run([command_line, "convert", source, converted], check=True)
    seekway.write_trace(seekway.read_trace(source), written)
    given = {"policies": ["noop", "cfq"], "max_requests": 5000, "device": "intel-320"}
    runs = [seekway.compare(path, **given).runs for path in (source, converted, written)]
    for run in itertools.chain(*runs):
        run.pop("wall_s")
        run["vms"][0].pop("name")
    assert runs[0] == runs[1] == runs[2]


def test_the_program_says_how_to_read_and_write_parquet(tmp_path: Path, command_line: str) -> None:
    parquet = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table(rows(100)), parquet)

    def line(*arguments: object) -> str:
        made = subprocess.run([command_line, *arguments], capture_output=True, text=True)
        assert made.returncode == 2
        return made.stderr.split('python3 -c "')[1].split('"')[0]

    # Both run as they are printed.
    exec(line("inspect", parquet), {})
    assert seekway.read_trace(f"{parquet}.csv.gz").to_arrow().num_rows == 100
    again = tmp_path / "again.parquet"
    exec(line("convert", f"{parquet}.csv.gz", again), {})
    assert pyarrow.parquet.read_table(again).num_rows == 100
    with pytest.raises(seekway.TraceError, match="write_trace"):
        seekway.read_trace(parquet)


def test_the_files_of_a_blktrace_are_one_trace() -> None:
    files = ["d/sda.blktrace.0", "d/sda.blktrace.1.gz", "d/sda.blktrace.10", "e/sda.blktrace.1"]
    assert traces_of(files) == ["d/sda.blktrace.0", "e/sda.blktrace.1"]
    twice = ["sda.blktrace.1", "sda.blktrace.1", "a.csv", "a.csv", "run.1", "run.2"]
    assert traces_of(twice) == twice


def test_a_table_by_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text("0;R;0;4096\n1.5;W;8192;512\n")
    with pytest.raises(seekway.TraceError, match="--columns time_us"):
        seekway.read_trace(path)
    table = seekway.read_trace(path, columns="time_ms,op,offset,size").to_arrow()
    assert table["time_ns"].to_pylist() == [0, 1_500_000]
    assert table["op"].to_pylist() == ["read", "write"]
    assert table["sectors"].to_pylist() == [8, 1]


def rows(count: int) -> dict[str, list]:
    return {
        "time_ns": [n * 1000 for n in range(count)],
        "op": ["read" if n % 3 else "W" for n in range(count)],
        "start_sector": [n * 8 for n in range(count)],
        "sectors": [8] * count,
    }


def test_tables_and_files_of_pandas_polars_and_duckdb(tmp_path: Path) -> None:
    frame = pandas.DataFrame(rows(100))
    files = [tmp_path / f"{n}.parquet" for n in range(3)]
    frame.to_parquet(files[0])
    polars.DataFrame(rows(100)).write_parquet(files[1])
    duckdb.sql(f"copy (select * from frame) to '{files[2]}' (format parquet)")
    tables = [frame, polars.DataFrame(rows(100)), pyarrow.table(rows(100))]
    read = []
    for requests in files + tables:
        assert seekway.write_trace(requests, tmp_path / "t.csv") == 100
        read.append(seekway.read_trace(tmp_path / "t.csv").to_arrow())
    assert all(table.equals(read[0]) for table in read)
    assert read[0]["op"].to_pylist()[:3] == ["write", "read", "read"]


def test_the_same_requests_are_the_same_bytes(tmp_path: Path) -> None:
    one, two = tmp_path / "one.csv.gz", tmp_path / "two.csv.gz"
    for path in (one, two):
        seekway.write_trace(pandas.DataFrame(rows(100)), path)
    assert one.read_bytes() == two.read_bytes()


def test_requests_of_a_run_are_a_trace(tmp_path: Path) -> None:
    made = seekway.compare(vms="app=sysbench:mode=RR", policies="noop", until="1s")
    requests = made.requests(0)
    count = seekway.write_trace(requests, tmp_path / "run.csv.gz")
    assert count == len(requests)


def test_other_types_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    table = pyarrow.table(
        {
            "time_us": pyarrow.array([5_000_000, 5_000_007], pyarrow.timestamp("us", "UTC")),
            "op": pyarrow.array(["read", "flush"]).dictionary_encode(),
            "offset_bytes": pyarrow.array([1000, 0], pyarrow.int32()),
            "size_bytes": pyarrow.array([100, 0], pyarrow.uint16()),
            "volume": pyarrow.array([7, 8]),
            "sync": pyarrow.array([None, False]),
            "unknown": [[1], []],
        }
    )
    seekway.write_trace(table, path)
    read = seekway.read_trace(path).to_arrow().to_pylist()
    assert read[0] == {
        "time_ns": 0,
        "volume": "7",
        "process": 0,
        "op": "read",
        "sync": True,
        "start_sector": 1,
        "sectors": 2,
    }
    assert (read[1]["time_ns"], read[1]["op"], read[1]["volume"]) == (7000, "flush", "8")
    assert read[1]["sync"] is False


def test_a_bad_row_is_named_and_can_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("time_ns,op,start_sector,sectors\n0,read,0,8\n1,write,8,\n2,read,16,8\n")
    with pytest.raises(seekway.TraceError, match=":3:11:") as raised:
        list(seekway.read_trace(path))
    assert (raised.value.line, raised.value.column) == (3, 11)
    assert seekway.read_trace(path, lenient=True).to_arrow().num_rows == 2
    for column, bad in (("op", "x"), ("start_sector", -1), ("sectors", 0), ("sectors", None)):
        wrong = rows(5)
        wrong[column][3] = bad
        with pytest.raises(seekway.TraceError, match=r"never\.csv:5:") as raised:
            seekway.write_trace(pyarrow.table(wrong), tmp_path / "never.csv")
        assert raised.value.path == str(tmp_path / "never.csv")
    assert [p.name for p in tmp_path.iterdir()] == ["bad.csv"]


def test_what_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(seekway.SeekwayError, match="not recognised"):
        seekway.write_trace(pyarrow.table({"time_ns": [1]}), tmp_path / "t.csv")
    with pytest.raises(seekway.SeekwayError, match="__arrow_c_stream__"):
        seekway.write_trace([1], tmp_path / "t.csv")
    with pytest.raises(seekway.SeekwayError, match="no requests"):
        seekway.write_trace(pyarrow.table(rows(0)), tmp_path / "t.parquet")
    with pytest.raises(seekway.SeekwayError, match="folder"):
        seekway.write_trace(pyarrow.table(rows(1)), tmp_path / "absent" / "t.csv")
    assert not list(tmp_path.iterdir())
    with pytest.raises(seekway.TraceError, match="cannot open"):
        seekway.read_trace(tmp_path / "absent")
