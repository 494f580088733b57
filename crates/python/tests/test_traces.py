"""Traces as Arrow and Parquet."""

from __future__ import annotations

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
def test_every_sample_comes_back_from_parquet(traces: Path, tmp_path: Path, name: str) -> None:
    trace = seekway.read_trace(traces / name)
    copy = tmp_path / "copy.parquet"
    count = seekway.write_trace(trace, copy)
    first, second = trace.to_arrow(), seekway.read_trace(copy).to_arrow()
    assert first.num_rows == count
    assert first.to_pydict() == second.to_pydict()


def test_the_figures_are_the_same_from_parquet(
    traces: Path, tmp_path: Path, command_line: str
) -> None:
    source, copy = traces / "vm" / "cloudPhysicsIO.vscsi", tmp_path / "copy.parquet"
    subprocess.run([command_line, "convert", source, copy], check=True)
    given = {"policies": ["noop", "cfq"], "max_requests": 5000, "device": "intel-320"}
    runs = [seekway.compare(path, **given).runs for path in (source, copy)]
    for run in runs[0] + runs[1]:
        run.pop("wall_s")
        run["vms"][0].pop("name")
    assert runs[0] == runs[1]


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


def test_files_of_pandas_polars_and_duckdb(tmp_path: Path) -> None:
    frame = pandas.DataFrame(rows(100))
    by_pandas, by_polars, by_duckdb = (tmp_path / f"{n}.parquet" for n in range(3))
    frame.to_parquet(by_pandas)
    polars.DataFrame(rows(100)).write_parquet(by_polars)
    duckdb.sql(f"copy (select * from frame) to '{by_duckdb}' (format parquet)")
    first = seekway.read_trace(by_pandas).to_arrow().drop_columns("volume")
    for path in (by_polars, by_duckdb):
        assert seekway.read_trace(path).to_arrow().drop_columns("volume").equals(first)
    assert first["op"].to_pylist()[:3] == ["write", "read", "read"]


@pytest.mark.parametrize(
    ("codec", "version"),
    [("snappy", "1.0"), ("zstd", "2.0"), ("lz4", "1.0"), ("none", "2.0"), ("gzip", "1.0")],
)
def test_codecs_and_versions_of_pages(tmp_path: Path, codec: str, version: str) -> None:
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table(rows(1000)),
        path,
        compression=codec,
        row_group_size=300,
        data_page_version=version,
        use_dictionary=codec != "lz4",
    )
    if codec == "gzip":
        with pytest.raises(seekway.TraceError, match="gzip"):
            seekway.read_trace(path).to_arrow()
        return
    read = seekway.read_trace(path).to_arrow()
    assert read.num_rows == 1000
    assert read["start_sector"][999].as_py() == 999 * 8


def test_other_types_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pyarrow.table(
        {
            "time_ns": pyarrow.array([5_000_000, 5_000_007], pyarrow.timestamp("us")),
            "op": pyarrow.array(["read", "flush"]).dictionary_encode(),
            "offset_bytes": pyarrow.array([1000, 0], pyarrow.int32()),
            "size_bytes": pyarrow.array([100, 0], pyarrow.uint16()),
            "volume": pyarrow.array([7, 8]),
            "unknown": [[1], []],
        }
    )
    pyarrow.parquet.write_table(table, path)
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


def test_a_bad_row_is_named_and_can_be_skipped(tmp_path: Path) -> None:
    table = rows(50) | {"sectors": [8] * 40 + [None] + [8] * 9}
    path = tmp_path / "bad.parquet"
    pandas.DataFrame(table).astype({"sectors": "Int64"}).to_parquet(path)
    with pytest.raises(seekway.TraceError, match="row 41") as raised:
        list(seekway.read_trace(path))
    assert raised.value.record == 41
    assert seekway.read_trace(path, lenient=True).to_arrow().num_rows == 49
    for column, bad in (("op", "x"), ("start_sector", -1), ("sectors", 0)):
        wrong = rows(5)
        wrong[column][3] = bad
        with pytest.raises(seekway.TraceError, match=r"row 4"):
            seekway.write_trace(pyarrow.table(wrong), tmp_path / "never.parquet")
    assert [p.name for p in tmp_path.iterdir()] == ["bad.parquet"]


def test_what_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(seekway.SeekwayError, match="has a column op"):
        seekway.write_trace(pyarrow.table({"time_ns": [1]}), tmp_path / "t.parquet")
    with pytest.raises(seekway.SeekwayError, match="__arrow_c_stream__"):
        seekway.write_trace([1], tmp_path / "t.parquet")
    with pytest.raises(seekway.TraceError, match="cannot open"):
        seekway.read_trace(tmp_path / "absent")


def test_compare_as_parquet(command_line: str) -> None:
    made = seekway.compare(vms="app=sysbench:mode=RR", policies=["noop", "cfq"], until="1s")
    line = [command_line, "compare", *made.arguments, "--format=parquet"]
    printed = subprocess.run(line, check=True, capture_output=True).stdout
    table = pyarrow.parquet.read_table(pyarrow.BufferReader(printed))
    assert table.to_pydict() == made.to_arrow().to_pydict()
    assert table["requests"].type == pyarrow.uint64()
