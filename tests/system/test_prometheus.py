"""A real Prometheus reads a real daemon, with the configuration, rules and alerts in `share/`.
Every query of the dashboard has to return data."""

from __future__ import annotations

import json
import math
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, Daemon, need, wait_for
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

SHARE = ROOT / "share" / "prometheus"
DASHBOARD = ROOT / "share" / "grafana" / "seekway.json"
RULES = [SHARE / "seekway.rules.yml", SHARE / "seekway.alerts.yml"]
# Values of the dashboard's variables. Of times: 15 scrapes.
VARIABLES = {"$instance": ".*", "$device": ".*", "$disk": ".*", "$__rate_interval": "15s"}
# A name of ours, recorded or from the daemon.
NAME = re.compile(r"\b(?:(?:disk|device):)?seekway_\w+(?::\w+)?")


def promtool(*arguments: str | Path) -> None:
    """Run promtool; what it prints when it fails is the test's message."""
    command = ["promtool", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def rules(path: Path) -> list[Any]:
    """All rules of a file."""
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def dashboard() -> Any:
    """The dashboard, as Grafana imports it."""
    return json.loads(DASHBOARD.read_text())


def queries() -> list[str]:
    """Every query of the dashboard's panels, with its variables filled in."""
    found = [
        target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])
    ]
    for variable, value in VARIABLES.items():
        found = [query.replace(variable, value) for query in found]
    assert found and not any("$" in query for query in found), "a variable that nobody fills in"
    return found


class Prometheus:
    """A Prometheus with the files of `share/prometheus`, shorter intervals and its own storage."""

    def __init__(self, folder: Path, target: str) -> None:
        for path in SHARE.glob("*.yml"):
            text = path.read_text().replace("127.0.0.1:9187", target)
            # The example's times are for months. Here all is read and evaluated each second, and
            # alerts fire at once.
            text = re.sub(r"interval: \d+s", "interval: 1s", text)
            text = re.sub(r"scrape_timeout: \d+s", "scrape_timeout: 1s", text)
            (folder / path.name).write_text(re.sub(r"\bfor: \d+\w", "for: 0s", text))
        self.log = folder / "prometheus.log"
        command = ["prometheus", f"--config.file={folder}/prometheus.yml"]
        command += [f"--storage.tsdb.path={folder}/data", "--web.listen-address=127.0.0.1:0"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            self.address = wait_for("Prometheus says where it listens", self.listens)
            wait_for("Prometheus is ready", self.is_ready)
        except BaseException:
            self.end()
            raise

    def listens(self) -> str | None:
        """The address from its log; the kernel has chosen the port."""
        text = self.log.read_text()
        assert self.process.poll() is None, text
        found = re.search(r"Listening on.* address=(127\.0\.0\.1:\d+)", text)
        return found and found[1]

    def is_ready(self) -> bool:
        """Has it read its storage? Until then it answers with an error."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=60) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=600) as answer:
            return json.load(answer)["data"]

    def has(self, query: str) -> bool:
        """Does a query return a number?"""
        result = self.get("query", query=query)["result"]
        return any(not math.isnan(float(sample["value"][1])) for sample in result)

    def firing(self) -> set[tuple[str, str]]:
        """Alerts that fire, each with its disk."""
        alerts = [alert for alert in self.get("alerts")["alerts"] if alert["state"] == "firing"]
        return {(a["labels"]["alertname"], a["labels"].get("disk", "")) for a in alerts}

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Any]:
    """A function that starts a Prometheus which reads the metrics of a daemon."""
    started: list[Prometheus] = []

    def start(daemon: Daemon) -> Prometheus:
        folder = tmp_path / "prometheus"
        folder.mkdir()
        target = dict(daemon.status()["sockets"])["metrics"]
        started.append(Prometheus(folder, target))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture
def load() -> Iterator[Any]:
    """A function that loads a disk until the test ends."""
    loads: list[subprocess.Popen[bytes]] = []

    def start(daemon: Daemon, disk: str, *options: str) -> None:
        nbd = f"nbd+unix:///{disk}?socket={daemon.socket(f'{disk}.nbd')}"
        command = ["qemu-img", "bench", "-f", "raw", "-c", "1000000000", "-d", "4", *options, nbd]
        loads.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))

    yield start
    for one in loads:
        one.kill()
        one.wait()


def test_the_rules_are_valid_and_each_alert_has_its_tests() -> None:
    need("promtool")
    promtool("check", "config", SHARE / "prometheus.yml")
    promtool("check", "rules", *RULES)
    tests = sorted((SHARE / "tests").glob("*.test.yml"))
    promtool("test", "rules", *tests)
    fires, is_quiet = set(), set()
    for path in tests:
        for test in yaml.safe_load(path.read_text())["tests"]:
            for case in test["alert_rule_test"]:
                fires |= {case["alertname"]} if case["exp_alerts"] else set()
                if test["name"] == "a healthy daemon" and not case["exp_alerts"]:
                    is_quiet.add(case["alertname"])
    alerts = {rule["alert"] for rule in rules(SHARE / "seekway.alerts.yml")}
    assert fires == alerts and is_quiet == alerts
    # The documentation says of each what to do.
    page = (ROOT / "docs" / "prometheus.md").read_text()
    assert alerts == set(re.findall(r"^\| `(Seekway\w+)`", page, re.MULTILINE))


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    board = dashboard()
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert board["uid"] and board["title"] and board.get("id") is None and "__inputs" not in board
    panels = board["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, f"{panel['title']} overlaps"
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        for target in [panel, *panel["targets"]]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    # Grafana's own types know every field of it: one that is misspelt would be gone.
    plugins.register_default_plugins()
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard())))
    assert not lost(board, again)
    used = set(re.findall(r"\$\{?([a-z]\w*)", DASHBOARD.read_text()))
    assert used == set(variables)


def lost(before: Any, after: Any, path: str = "") -> list[str]:
    """Where `after` lacks what `before` has, or has something else there."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = [lost(value, after.get(key), f"{path}.{key}") for key, value in before.items()]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        found = [lost(one, other, f"{path}[{at}]") for at, (one, other) in pairs]
    else:
        found = [] if before == after else [[f"{path}: {before!r}, {after!r}"]]
    return [place for places in found for place in places]


def test_every_query_of_the_dashboard_has_data(
    serve: Any, image: Any, load: Any, prometheus: Any
) -> None:
    need("prometheus", "qemu-img", "qemu-io")
    disks = {
        "web": "",
        "db": ",weight=2,latency=1ms,reserve_iops=10",
        "capped": ",iops=20",
        "bad": ",fault=eio:op=read",
    }
    arguments = [f"--disk={disk}={image(disk, '8G')}{more}" for disk, more in disks.items()]
    arguments.append("--disk=gone=/nonexistent/gone.img")
    stack = ["--emulate", "seagate-1tb-7200", "--cache", "16MiB", "--metrics", "127.0.0.1:0"]
    daemon = serve(*stack, *arguments)
    server = prometheus(daemon)
    load(daemon, "web", "-s", "65536")
    load(daemon, "db", "-w", "-s", "4096", "-S", "1236992", "--flush-interval", "64")
    load(daemon, "capped", "-s", "65536")

    def fail_once() -> None:
        nbd = f"nbd+unix:///bad?socket={daemon.socket('bad.nbd')}"
        command = ["qemu-io", "-r", "-f", "raw", "-c", "read 0 4k", nbd]
        subprocess.run(command, check=False, capture_output=True)

    left = queries()

    def all_had_data() -> bool:
        fail_once()
        left[:] = [query for query in left if not server.has(query)]
        return not left

    try:
        wait_for("data of every query", all_had_data)
    except AssertionError:
        pytest.fail("no data of:\n" + "\n".join(left))
    check_rules(server)
    check_names(server)
    check_variables(server)
    check_alerts(server, daemon)


def check_rules(server: Prometheus) -> None:
    """Prometheus evaluates each rule without an error."""

    def all_evaluated() -> bool:
        found = [rule for group in server.get("rules")["groups"] for rule in group["rules"]]
        assert len(found) == sum(len(rules(path)) for path in RULES)
        assert not [rule for rule in found if rule["health"] == "err"], found
        return all(rule["health"] == "ok" for rule in found)

    wait_for("every rule was evaluated", all_evaluated)


def check_names(server: Prometheus) -> None:
    """Everything that rules and dashboard name is there: nothing hides behind an `or`."""
    there = set(server.get("label/__name__/values"))
    texts = [rule["expr"] for path in RULES for rule in rules(path)]
    named = {name for text in [*texts, DASHBOARD.read_text()] for name in NAME.findall(text)}
    assert named and named <= there, f"not there: {sorted(named - there)}"


def check_variables(server: Prometheus) -> None:
    """The dashboard's variables have values to choose from."""
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] != "query":
            continue
        query = variable["query"]["query"]
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        asked = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
        assert asked, query
        assert server.get(f"label/{asked[2]}/values", **{"match[]": asked[1]}), query


def check_alerts(server: Prometheus, daemon: Daemon) -> None:
    """Alerts fire on the disk that each is about; those of a sick daemon once it is gone."""
    expected = {("SeekwayDiskNotServed", "gone"), ("SeekwayIOErrors", "bad")}
    expected.add(("SeekwayLatencyOverTarget", "db"))
    wait_for("alerts", lambda: expected <= server.firing())
    of: dict[str, set[str]] = {}
    for alert, disk in server.firing():
        of.setdefault(alert, set()).add(disk)
    assert of["SeekwayDiskNotServed"] == {"gone"} and of["SeekwayIOErrors"] == {"bad"}, of
    assert "SeekwayFlushFails" not in of and "SeekwayDiskStandsStill" not in of, of
    assert "capped" not in of.get("SeekwayDiskStarves", set()), of
    daemon.end()
    wait_for("SeekwayDown", lambda: ("SeekwayDown", "") in server.firing())
