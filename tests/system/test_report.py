"""The pages of `--report` in a real Chromium: figures are drawn from the page alone, lines can be
hidden, and values are read under the pointer."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import need

playwright = pytest.importorskip("playwright.sync_api")

VMS = ["--vm", "name=<b>a</b>,app=uniform:outstanding=4", "--vm", "name=b,app=uniform"]
WIDTHS = [400, 1200]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium of these tests."""
    need("chromium")
    with playwright.sync_playwright() as engine:
        flags = ["--headless", "--no-sandbox", "--disable-gpu"]
        browser = engine.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(seekway: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two VMs under three policies, beside private disks: lines, points, seeks and bars."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    more = ["--until", "5s", "--policies", "noop,cfq,fairway", "--fair-to", "private"]
    command = [seekway, "compare", *VMS, *more, "--report", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.fixture(params=WIDTHS)
def tab(browser: Any, report: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The page at a width; nothing goes wrong on it, and it fetches nothing."""
    context = browser.new_context(viewport={"width": request.param, "height": 900})
    tab = context.new_page()
    wrong: list[str] = []
    tab.on("console", lambda message: wrong.append(message.text))
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("request", lambda asked: wrong.append(asked.url))
    tab.goto(report.as_uri())
    yield tab
    context.close()
    assert wrong == [report.as_uri()]


def test_figures_are_drawn_and_fit(tab: Any) -> None:
    hosts = tab.locator(".plot")
    assert hosts.count() > 5
    for n in range(hosts.count()):
        canvas = hosts.nth(n).locator("canvas").first
        colours = canvas.evaluate(
            "c => new Set(new Uint32Array(c.getContext('2d')"
            ".getImageData(0, 0, c.width, c.height).data.buffer)).size"
        )
        assert colours > 2, f"figure {n} has nothing in it"
    assert tab.locator(".bars .bar").count() == 6
    widths = "[document.documentElement.scrollWidth, innerWidth]"
    page, window = tab.evaluate(widths)
    assert page <= window
    cut = "[...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth)"
    assert tab.evaluate(cut + ".length") == 0
    tab.emulate_media(color_scheme="dark")
    assert hosts.first.locator("canvas").count() >= 1
    assert tab.evaluate("document.querySelector('.plot b, h2 b')") is None, "names are text"


def test_a_line_is_read_and_hidden(tab: Any) -> None:
    figure = tab.locator("figure", has_text="Bandwidth of all VMs together.")
    values = figure.locator(".u-value")
    figure.locator(".u-over").hover()
    read = values.all_inner_texts()
    assert len(read) == 4 and read[0].endswith(" s") and "iB/s at " in read[1], read
    second = figure.locator(".u-series").nth(2)
    second.locator("th").click()
    assert "u-off" in (second.get_attribute("class") or "")
    assert "u-off" not in (figure.locator(".u-series").nth(1).get_attribute("class") or "")


def test_the_page_begins_with_its_result(tab: Any) -> None:
    assert "fairway, the default, " in tab.locator(".summary").inner_text()
    kinds = tab.locator("figure, .table").evaluate_all("all => all.map(e => e.tagName)")
    assert kinds == sorted(kinds, key=["FIGURE", "DIV"].index), "figures before tables"
    assert tab.locator("td.best").count() > 0
