"""The environment of Gymnasium: the same simulator, decided from outside."""

from __future__ import annotations

import doctest
import importlib.util
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import seekway
import seekway.gym
from gymnasium.utils.env_checker import check_env
from seekway.gym import FEATURES, DiskEnv

VMS = ["name=a,app=sysbench:mode=RR,app=sysbench:mode=RR", "name=b,app=sysbench:mode=SR"]
FIGURES = ("requests", "iops", "mib_s", "response_ms", "service_ms", "commands")

# The environment's default.
DISK = "seagate-1tb-7200"


def play(env: DiskEnv, choose: Callable[[np.ndarray], int], seed: int = 1) -> tuple[float, dict]:
    """The sum of the rewards in ms, and the last info."""
    seen, info = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        seen, reward, terminated, truncated, info = env.step(choose(seen))
        total, over = total + reward, terminated or truncated
        assert env.observation_space.contains(seen)
    assert terminated is info["run"]["finished"] and truncated is not terminated
    return total, info


def episodes() -> int:
    return sum(thread.name == "seekway-episode" for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    assert episodes() == 0


def built_in(policy: str, **more) -> dict:
    return seekway.compare(vms=VMS, device=DISK, policies=policy, alone="never", **more).runs[0]


def test_gymnasium_accepts_it() -> None:
    env = DiskEnv(vms=VMS, until="200ms")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*alternative render modes")
        check_env(env)
    env.close()
    made = gymnasium.make("seekway.gym:seekway/Disk-v0", vms=VMS, until="200ms")
    assert made.observation_space == env.observation_space
    made.close()


def test_the_oldest_first_is_noop_to_the_bit() -> None:
    noop = built_in("noop", until="2s")
    _, info = play(DiskEnv(vms=VMS, until="2s"), lambda seen: 0)
    for key in FIGURES:
        assert info["run"][key] == noop[key], key
    assert info["run"]["policy"] == "agent" and info["seed"] == 1


def test_an_empty_row_sends_the_oldest() -> None:
    noop = built_in("noop", until="1s")
    _, info = play(DiskEnv(vms=VMS, until="1s", slots=200), lambda seen: 199)
    assert info["run"]["response_ms"] == noop["response_ms"]


def test_the_nearest_first_is_sstf() -> None:
    def nearest(seen: np.ndarray) -> int:
        distance = np.where(seen[:, 0] == 1, seen[:, FEATURES.index("distance")], np.inf)
        return int(distance.argmin())

    sstf = built_in("sstf", until="2s")
    _, info = play(DiskEnv(vms=VMS, until="2s", slots=64), nearest)
    assert info["run"]["response_ms"]["mean"] == pytest.approx(sstf["response_ms"]["mean"], rel=0.1)
    assert info["run"]["mib_s"] == pytest.approx(sstf["mib_s"], rel=0.1)


def test_the_rewards_are_the_time_in_the_queue() -> None:
    vms = ["app=uniform:outstanding=8,requests=300"]
    total, info = play(DiskEnv(vms=vms, coalesce=0), lambda seen: 0)
    assert info["run"]["finished"] and info["run"]["requests"] == 300
    noop = seekway.compare(vms=vms, device=DISK, policies="noop", alone="never", coalesce=0)
    requests = noop.requests().to_arrow().to_pydict()
    response_ns = sum(requests["completed_ns"]) - sum(requests["submitted_ns"])
    # The disk serves one at a time and always has one: the rest of the time in it is the queue's.
    assert total == pytest.approx(-response_ns / 1e6 + noop.runs[0]["simulated_s"] * 1e3, rel=1e-12)


def test_what_is_seen() -> None:
    env = DiskEnv(vms=VMS, until="1s", slots=4)
    assert env.vms == ["a", "b"] and env.observation_space.shape == (4, len(FEATURES) + 2)
    seen, info = env.reset(seed=3)
    for _ in range(40):
        rows = min(info["queued"], 4)
        assert list(seen[:, 0]) == [1] * rows + [0] * (4 - rows)
        assert list(env.action_masks()) == [bool(x) for x in info["action_mask"]]
        assert list(seen[:, len(FEATURES) :].sum(axis=1)) == list(seen[:, 0])
        ages = seen[:rows, FEATURES.index("age")]
        assert (np.diff(ages) <= 0).all()
        seen, _, _, _, info = env.step(0)
    env.close()


def test_the_same_seed_is_the_same_episode() -> None:
    env = DiskEnv(vms=VMS, until="500ms")
    (one, first), (two, second) = play(env, lambda seen: 0, 7), play(env, lambda seen: 0, 7)
    assert one == two
    np.testing.assert_equal(first, second)
    env.reset(seed=5)
    follows = [env.reset()[1]["seed"] for _ in range(3)]
    assert len(set(follows)) == 3
    env.reset(seed=5)
    assert [env.reset()[1]["seed"] for _ in range(3)] == follows
    env.close()


def test_a_reset_in_the_middle_ends_the_thread() -> None:
    env = DiskEnv(vms=VMS, until="100h")
    for seed in range(3):
        env.reset(seed=seed)
        env.step(0)
        assert episodes() == 1
    env.close()
    assert episodes() == 0
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    env.close()


def test_an_environment_that_is_forgotten_ends_its_thread() -> None:
    env = DiskEnv(vms=VMS, until="100h")
    env.reset(seed=1)
    del env
    assert episodes() == 0


def test_wrong_arguments() -> None:
    with pytest.raises(seekway.SeekwayError, match="one run; these options ask for 2"):
        DiskEnv(vms=VMS, cache=["none", "64MiB"])
    with pytest.raises(seekway.SeekwayError, match="seeds: not an option here"):
        DiskEnv(vms=VMS, seeds=3)
    with pytest.raises(seekway.SeekwayError, match="slots: 0"):
        DiskEnv(vms=VMS, slots=0)
    with pytest.raises(seekway.SeekwayError):
        DiskEnv(vms=VMS, device="no-such-disk")
    env = DiskEnv(vms=VMS, until="1s", slots=4)
    env.reset(seed=1)
    with pytest.raises(seekway.SeekwayError, match="a row from 0 to 3"):
        env.step(4)
    env.close()


def test_the_documented_example_runs() -> None:
    assert doctest.testmod(seekway.gym).failed == 0


def test_the_example_learns_in_little_time(capsys: pytest.CaptureFixture[str]) -> None:
    place = Path(__file__).resolve().parents[1] / "examples" / "learn_policy.py"
    spec = importlib.util.spec_from_file_location("learn_policy", place)
    assert spec is not None and spec.loader is not None
    example = sys.modules["learn_policy"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    found = example.main(["--generations=2", "--population=6", "--elite=2", "--seeds=1"])
    assert found["learnt"] < found["noop"]
    assert "learnt  mean response" in capsys.readouterr().out
