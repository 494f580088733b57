from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from seekway_lab import declared, judge
from seekway_lab.judge import Runs, Verdict
from seekway_lab.records import LabError, differences, digits


@pytest.mark.parametrize(
    ("paper", "values", "verdict"),
    [
        (1.6, [1.31, 1.40], "holds"),
        (1.6, [1.20, 1.30], "in part"),  # less than half of the gain
        (1.6, [0.99, 2.50], "in part"),  # not on every seed
        (1.6, [0.90, 1.05], "refuted"),
        (1.6, [1.05, 1.06], "refuted"),  # less than a tenth of the gain
        (0.64, [0.80, 0.81], "holds"),  # a time that falls
        (0.64, [1.2], "refuted"),
        (1.6, [2.1, 2.3], "holds"),  # twice the gain
        (1.6, [2.3, 2.4], "exceeds"),
        (1.6, [0.9, 9.0], "in part"),  # much, but not on every seed
    ],
)
def test_a_factor_is_judged_by_order_and_gain(
    paper: float, values: list[float], verdict: str
) -> None:
    assert judge.factor("", paper, values).verdict == verdict


def test_verdicts_follow_the_definition() -> None:
    above = [[0.09, 0.12], [-0.01, 0.12], [-0.01, 0.0]]
    verdicts = [judge.difference("", 0.2, values).verdict for values in above]
    assert verdicts == ["holds", "in part", "refuted"]
    values = [judge.value("", 46, [v], "s", 0.25).verdict for v in (50, 60, 95)]
    assert values == ["holds", "in part", "refuted"]
    limits = [judge.limit("", 1.3, v, "s").verdict for v in ([1.0, 1.3], [0.9, 1.4], [1.2, 1.5])]
    assert limits == ["holds", "in part", "refuted"]
    orders = [judge.ordering("", v, 1, "×").verdict for v in ([1.1, 2], [0.9, 2], [0.9, 1])]
    assert orders == ["holds", "in part", "refuted"]


def test_what_is_asked_is_none_unless_something_is() -> None:
    assert judge.measured("", [0.9], "×").asked is None
    row = judge.measured("", [0.9], "×", "why").ask(False, "1")
    assert (row.asked, row.why) == (False, "why; 1 is asked: NOT MET")


def test_a_row_as_text_has_six_digits() -> None:
    assert [digits(v) for v in (None, float("nan"), 839270.49, 0.000668616, 75.0)] == [
        *("", "", "839270", "0.000668616", "75")
    ]
    record = judge.value("x", 2, [1.0, 2.0, 3.0], "ms", 0.1).record("study")
    assert [record[c] for c in ("experiment", "paper", "ours", "least", "largest")] == [
        *("study", "2", "2", "1", "3")
    ]
    none = judge.measured("x", [], "ms").record("study")
    assert (none["ours"], none["least"]) == ("", "")


def test_differences_do_not_heed_the_reasons() -> None:
    rows = [judge.measured(name, [n], "ms", "why") for n, name in enumerate("abc")]
    old = [row.record("s") for row in rows]
    new = [{**old[0], "why": "else"}, {**old[1], "ours": "7"}, {**old[2], "row": "d"}]
    found = differences(new, old)
    assert found["equal"] == ["s: a"]
    assert found["differ"] == ["s: b: ours was 1, is 7"]
    assert (found["missing"], found["new"]) == (["s: c"], ["s: d"])


@pytest.fixture
def runs() -> Runs:
    """Two scenarios under two policies with two seeds, not in order."""
    cells = [(s, p, seed) for s in ("one", "two") for p in ("a", "b") for seed in (2, 1)]
    table = pd.DataFrame(cells, columns=["scenario", "policy", "seed"])
    table["time"] = table["seed"] * np.where(table["policy"] == "a", 1.0, 2.0)
    return Runs({"runs": table})


def test_figures_are_by_seed(runs: Runs) -> None:
    assert runs.scenarios == ["one", "two"] and runs.policies("one") == ["a", "b"]
    assert list(runs.each("one", "b", "time")) == [2, 4]
    assert list(runs.each("one", "b", lambda t: t["time"] + 1)) == [3, 5]
    assert list(runs.ratio("one", "a", "b", "time")) == [0.5, 0.5]
    with pytest.raises(KeyError, match="no runs of 'one' under c"):
        runs.each("one", "c", "time")


DATA = {
    "figures": {"time": {"column": "time", "unit": "s"}},
    "paper": {"time": {"a": 1.5, "b": 2.0}},
    "pairs": {"both": [["a", "b"]]},
}


def test_rows_are_data(runs: Runs) -> None:
    spec = [
        {"figures": ["time"], "policies": ["a"], "in": ["o*"], "judge": "value", "within": 0.1},
        {"figures": ["time"], "pairs": "both", "judge": "factor", "not_in": ["two"]},
        # Of a policy that the paper does not know.
        {"figures": ["time"], "policies": ["b"], "over": "one", "in": ["two"], "name": "{ours}!"},
    ]
    spec[1]["ask"] = {"each_at_most": 0.4, "what": "0.4"}
    made = declared.rows({**DATA, "row": spec}, runs)
    assert [row.name for row in made] == ["one: time under a", "one: time, a over b", "b!"]
    assert [row.verdict for row in made] == [Verdict.HOLDS, Verdict.HOLDS, Verdict.MEASURED]
    assert (made[1].paper, made[1].asked, made[2].unit) == (0.75, False, "×")


def test_a_row_that_cannot_be_is_refused(runs: Runs) -> None:
    for row, complaint in [
        ({"figures": ["time"], "of": ["a"]}, "no key 'of'"),
        ({"figures": ["time"], "policies": ["a"], "judge": "worth"}, 'no judge "worth"'),
    ]:
        with pytest.raises(LabError, match=complaint):
            declared.rows({**DATA, "row": [row]}, runs)
    row = {"figures": ["time"], "policies": ["a"], "judge": "factor"}
    with pytest.raises(LabError, match="needs the paper's figure"):
        declared.rows({"figures": DATA["figures"], "row": [row]}, runs)
