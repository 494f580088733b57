"""migrate-live: results of windows, and their verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seekway_lab.live import migrate, runs
from seekway_lab.live.inside import Seen
from seekway_lab.records import LabError


def seen(seconds: float, mib: float, fio: float, agent: float) -> Seen:
    return Seen(seconds, 0.02, mib, [("fio", fio), ("seekway-guest", agent)])


def window(
    iops: float, work_mib: float, reader: float, readers_cpu: float, agent_cpu: float
) -> dict[str, Any]:
    """Two guests alike, in four seconds."""
    guest = {
        "iops": iops,
        "mean_ms": 1e3 / iops,
        "p99_ms": 36.0,
        **migrate.between(seen(0, 0, 0, 0), seen(4, work_mib, readers_cpu, agent_cpu)),
        "wakeups_s": 120.0 if agent_cpu else 0.0,
        "any_runs": 0.75,
        "reader_runs": reader,
        "moves_s": 60.0,
        "moves_least_s": 70.0,
        "processors": 1.0,
        "agent": None,
    }
    schedule = {"slice_p10_ms": 1.0, "slice_median_ms": 10.0, "slice_p90_ms": 20.0}
    schedule |= {"served_processors": 0.1, "served_wait_p99_ms": 1.0}
    return migrate.window([guest, guest], schedule)


def judged(host: str, *windows: dict[str, Any]) -> dict[str, Any]:
    without = window(100, 400, 0.25, 0.8, 0)
    pairs = [{"without": without, "with": one} for one in windows]
    return migrate.judged(2, host, pairs, 11.0)


def test_the_gain_is_set_beside_the_allowed_one() -> None:
    row = judged("turns", *(window(iops, 388, 0.7, 1.2, 0.16) for iops in (240, 270, 120)))
    assert row["gain"] == {"median": 2.4, "least": 1.2, "largest": 2.7}
    assert (row["allowed"]["median"], row["verdict"]) == (3, "met")
    assert row["of_allowed"]["median"] == pytest.approx(0.8)
    assert row["loss"]["median"] == pytest.approx(0.03)
    # 0.1 of 16 vCPU-seconds more, of the 15.2 that the compute tasks had.
    assert row["loss_readers"]["median"] == pytest.approx(0.4 / 15.2)
    assert row["loss_agent"]["median"] == pytest.approx(0.16 / 15.2)
    assert row["agent_vcpus"]["median"] == pytest.approx(0.04)
    without = {key: spread["median"] for key, spread in row["without"].items()}
    assert (without["iops"], without["work_mib_s"]) == (200, 200)
    assert without["response_mean_ms"] == 10
    # 60 moves of 70 slices of 10 ms a second.
    assert row["with"]["moves_over_least"]["median"] == pytest.approx(60 / 70)


def test_each_miss_is_said() -> None:
    def verdict(host: str, iops: float, work: float) -> tuple[str, str]:
        row = judged(host, window(iops, work, 0.7, 1.2, 0.1))
        return row["verdict"], row["why"]

    assert verdict("turns", 160, 400)[0] == "missed", "1.6 of 3.0"
    assert verdict("turns", 170, 400)[0] == "met", "1.7 of 3.0"
    assert verdict("turns", 300, 350) == ("missed", "loss 12.5 % (10 % at most)")
    missed, why = verdict("turns", 90, 350)
    assert (missed, why.count(", ")) == ("missed", 2)
    often = {**window(300, 400, 0.7, 1.2, 0.1), "wakeups_s": 131.0}
    assert judged("turns", often)["why"] == "131 wake-ups a second (130 at most)"
    assert verdict("kernel", 100, 100) == ("measured", "median slice 10.0 ms")


def test_counters_grow() -> None:
    found = migrate.between(seen(100, 4, 1, 0.12), seen(101, 8, 2, 0.12))
    assert found == {"work_mib_s": 4, "readers_cpus": 1, "agent_cpus": 0}
    with pytest.raises(LabError, match="has ended in the window"):
        migrate.between(seen(101, 8, 2, 0.12), seen(102, 9, 1, 0.12))


def test_switches_of_all_threads_are_added() -> None:
    said = "7.50 3.00\nvoluntary_ctxt_switches:\t10\nvoluntary_ctxt_switches:\t32\n"
    assert migrate.sleeps(said) == (7.5, 42)
    assert migrate.sleeps("\n") is None
    assert migrate.per_second((7.5, 42), (9.5, 50)) == 4
    assert migrate.per_second(None, (9.5, 50)) == 0


def test_responses_are_read_from_fio() -> None:
    times = {"mean": 2_000_000.0, "percentile": {"99.000000": 36_000_000}}
    found = migrate.response({"jobs": [{"read": {"clat_ns": times}}]})
    assert found == {"mean_ms": 2, "p99_ms": 36}


def test_tables_have_a_column_for_each_row() -> None:
    row = judged("turns", window(170, 400, 0.7, 1.2, 0.1))
    results = str(migrate.results([row, {**row, "host": "kernel"}], 1, 2))
    assert "|  | 2 guests | 2 guests, kernel's slices |" in results
    assert "| gain of allowed | 0.567 | 0.567 |" in results
    hosts = str(migrate.hosts([row]))
    assert "|  | 2 guests, without | 2 guests, with |" in hosts
    assert "| slice median, ms | 10 | 10 |" in hosts


def test_a_policy_for_disks_is_refused() -> None:
    options = runs.Options(migrate.NAME, Path("seekway"), Path("seekway-guest"), policy=["cfq"])
    with pytest.raises(LabError, match="it is about vCPUs"):
        migrate.run(options)
