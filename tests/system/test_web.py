"""The web page of the daemon, in a real Chromium: what it shows, how it is used, who is refused."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, need, wait_for
from web_requests import ask, by_socket

playwright = pytest.importorskip("playwright.sync_api")

TOKEN = "0123456789abcdef0123456789abcdef"
PATIENCE_MS = 600_000
# Nothing of Chromium's own goes out.
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium of these tests."""
    need("chromium")
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield browser
        browser.close()


class Page:
    """A page of a daemon, and all that went wrong with it."""

    def __init__(self, browser: Any, port: int, **context: Any) -> None:
        self.origin = f"http://127.0.0.1:{port}"
        self.context = browser.new_context(**context)
        self.tab = self.context.new_page()
        self.tab.set_default_timeout(PATIENCE_MS)
        self.errors: list[str] = []
        self.elsewhere: list[str] = []
        self.tab.on("console", self.hear)
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("request", self.see)
        self.response = self.tab.goto(self.origin + "/")

    def hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def see(self, request: Any) -> None:
        if not request.url.startswith((self.origin + "/", "data:", "blob:")):
            self.elsewhere.append(request.url)

    def until(self, condition: str) -> None:
        """Wait for a condition in JavaScript. The page itself may not evaluate text, so that
        Playwright's own waiting does not work in it."""
        wait_for(condition, lambda: self.tab.evaluate(condition))

    def text(self, selector: str) -> str:
        return self.tab.locator(selector).inner_text()

    def wait_live(self) -> None:
        self.until("document.querySelector('#state').dataset.state === 'live'")
        self.until("document.querySelectorAll('#disk-table tbody tr').length > 0")

    def end(self) -> None:
        """Nothing was fetched from elsewhere, and nothing was wrong."""
        self.context.close()
        assert self.errors == []
        assert self.elsewhere == []


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """A function that opens the page at a port; contexts are closed with the test."""
    pages: list[Page] = []

    def start(port: int, **context: Any) -> Page:
        pages.append(Page(browser, port, **context))
        return pages[-1]

    yield start
    for page in pages:
        page.context.close()


@pytest.fixture
def load() -> Iterator[Any]:
    """A function that keeps reading from a disk, by NBD, until the test ends."""
    need("qemu-img")
    readers: list[subprocess.Popen[bytes]] = []

    def start(daemon: Any, disk: str, depth: int = 2) -> None:
        uri = f"nbd+unix:///{disk}?socket={daemon.socket(disk + '.nbd')}"
        bench = ["qemu-img", "bench", "-f", "raw", "-c", "1000000000", "-d", str(depth), uri]
        out = subprocess.DEVNULL
        readers.append(subprocess.Popen(bench, stdin=out, stdout=out, stderr=out))

    yield start
    for reader in readers:
        reader.kill()
        reader.wait()


def port_of(daemon: Any) -> int:
    """The port of the page."""
    addresses = [address for kind, address in daemon.status()["sockets"] if kind == "web"]
    return int(addresses[0].rsplit(":", 1)[1])


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """A file with a token."""
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(TOKEN + "\n")
    return path


def requests_per_second(page: Page, disk: str) -> str:
    return page.text(f"tr[data-disk='{disk}'] td[data-key='iops']")


def test_the_page_shows_a_load_and_goes_on(
    serve: Any, image: Any, open_page: Any, load: Any
) -> None:
    disks = ("--disk", f"web={image('web')}", "--disk", f"idle={image('idle')}", "--cache", "off")
    daemon = serve(*disks, "--web", "127.0.0.1:0")
    load(daemon, "web")
    page = open_page(port_of(daemon))
    policy = page.response.header_value("content-security-policy")
    assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
    page.wait_live()
    cell = "document.querySelector(\"tr[data-disk='web'] td[data-key='iops']\").textContent"
    page.until(f"!['', '0'].includes({cell})")
    before = requests_per_second(page, "web")
    page.until(f"![{before!r}, '0'].includes({cell})")
    assert requests_per_second(page, "idle") == "0"
    page.tab.locator("tr[data-disk='web'] .pick").click()
    assert page.text("#disk-title") == "Disk web"
    # What the charts say of themselves follows the load too.
    for chart in ("share", "responses", "latency", "disks", "iops", "bandwidth", "head", "busy"):
        label = f"document.querySelector('#chart-{chart} .plot').getAttribute('aria-label')"
        page.until(f"/\\d/.test({label}) || /Most commands/.test({label})")
    drawn = "[...document.querySelectorAll('figure:not([hidden]) .plot canvas')]"
    page.until(f"{drawn}.length >= 8 && {drawn}.every((c) => c.width > 200 && c.height > 100)")
    # A request takes longer than 1 ms now and then: on this machine it waits for a processor.
    page.tab.locator("#slow-over").select_option("1")
    page.end()


def test_eighty_disks_are_painted(serve: Any, image: Any, open_page: Any, load: Any) -> None:
    """`make bench-web` runs this on a release build, with SEEKWAY_PAINTS=10, and shows the times.

    The disks are on a slow drive, so that their clients leave a processor to the browser.
    """
    names = [f"d{number}" for number in range(80)]
    disks = [flag for name in names for flag in ("--disk", f"{name}={image(name)}")]
    daemon = serve(*disks, "--emulate", "seagate-1tb-7200", "--web", "127.0.0.1:0")
    for name in names[:8]:
        load(daemon, name)
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
    times_ms = []
    for _ in range(int(os.environ.get("SEEKWAY_PAINTS", "1"))):
        page = open_page(port_of(daemon))
        page.until(f"({paint}) > 0")
        times_ms.append(round(page.tab.evaluate(paint)))
        page.until("document.querySelectorAll('#disk-table tbody tr').length === 80")
        page.end()
    print(f"\nfirst contentful paint of 80 disks, 8 busy: {sorted(times_ms)} ms")


def test_keys_reach_everything(serve: Any, image: Any, open_page: Any) -> None:
    disks = [f for name in "abc" for f in ("--disk", f"{name}={image(name)}")]
    daemon = serve(*disks, "--cache", "off", "--web", "127.0.0.1:0")
    page = open_page(port_of(daemon))
    page.wait_live()
    page.until("document.querySelectorAll('figure canvas').length > 0")
    keys = page.tab.keyboard
    reached = []
    focus = """() => {
        const at = document.activeElement;
        const box = getComputedStyle(at);
        const target = at.name === 'range' ? getComputedStyle(at.nextElementSibling) : box;
        return [at.id || at.className || at.tagName, target.outlineStyle];
    }"""
    for _ in range(60):
        keys.press("Tab")
        name, outline = page.tab.evaluate(focus)
        if name == "BODY":
            break
        assert outline != "none", f"{name} has no visible focus"
        reached.append(name)
    for name in ("skip", "pause", "theme", "pick", "plot", "slow-over", "slow-one", "disks-scroll"):
        assert name in reached, f"{name} is not among {reached}"
    assert reached.count("pick") == 1, "one stop for the list of disks"

    page.tab.locator("tr[data-disk='a'] .pick").focus()
    for key, disk in (("ArrowDown", "b"), ("End", "c"), ("ArrowUp", "b"), ("Home", "a")):
        keys.press(key)
        page.until(f"document.querySelector('#disk-title').textContent === 'Disk {disk}'")
        pressed = page.tab.locator(".pick[aria-pressed='true']")
        assert pressed.inner_text() == disk
        assert page.tab.evaluate("document.activeElement.textContent") == disk
    page.tab.locator("#chart-iops .plot").focus()
    page.until("document.querySelector('#chart-iops .plot .u-over') !== null")
    keys.press("ArrowLeft")
    page.until(
        r"/^\d\d:\d\d:\d\d/.test(document.querySelector('#chart-iops .readout').textContent)"
    )
    page.tab.locator("input[value='600']").focus()
    keys.press("ArrowRight")
    assert page.tab.locator("input[value='whole']").is_checked()
    page.tab.locator("thead button", has_text="Weight").focus()
    keys.press("Enter")
    assert page.tab.locator("th[data-key='weight']").get_attribute("aria-sort") == "descending"
    page.end()


def test_a_screen_reader_finds_names(serve: Any, image: Any, open_page: Any, token: Path) -> None:
    daemon = serve(
        *("--disk", f"web={image('web')}", "--cache", "off"),
        *("--web", "127.0.0.1:0", "--web-control", str(token)),
    )
    page = open_page(port_of(daemon))
    page.wait_live()
    page.until("document.querySelectorAll('figure .plot[aria-label]').length >= 8")
    page.tab.locator("#chart-iops summary").click()
    page.until("document.querySelectorAll('#chart-iops tbody tr').length === 1")
    tree = page.context.new_cdp_session(page.tab).send("Accessibility.getFullAXTree")
    nameless, roles = [], set()
    for node in tree["nodes"]:
        role = node.get("role", {}).get("value")
        roles.add(role)
        named = ("button", "textbox", "searchbox", "combobox", "radio", "checkbox", "image")
        if node["ignored"] or role not in (*named, "region", "figure", "navigation", "link"):
            continue
        if not node.get("name", {}).get("value", "").strip():
            nameless.append(node)
    assert nameless == []
    for role in ("heading", "table", "columnheader", "rowheader", "radio", "figure", "status"):
        assert role in roles, f"no {role} among {roles}"
    # What is said by itself is what the user did, and whether the daemon is there.
    live = page.tab.locator("[aria-live], [role=status]")
    texts = live.evaluate_all("(all) => all.map((node) => node.textContent)")
    assert [text for text in texts if re.search(r"\d", text)] == []
    page.end()


def test_dark_and_light(serve: Any, image: Any, open_page: Any) -> None:
    daemon = serve("--disk", f"web={image('web')}", "--cache", "off", "--web", "127.0.0.1:0")
    lightness = """() => {
        const colour = getComputedStyle(document.body).backgroundColor;
        return Math.max(...colour.match(/\\d+/g).slice(0, 3).map(Number));
    }"""
    for scheme, other in (("dark", "light"), ("light", "dark")):
        page = open_page(port_of(daemon), color_scheme=scheme)
        page.wait_live()
        assert (page.tab.evaluate(lightness) < 128) == (scheme == "dark")
        page.tab.locator("#theme").select_option(other)
        assert (page.tab.evaluate(lightness) < 128) == (other == "dark")
        page.tab.reload()
        page.wait_live()
        assert (page.tab.evaluate(lightness) < 128) == (other == "dark"), "it is remembered"
        page.end()


def test_the_page_waits_for_a_daemon_that_is_gone(serve: Any, image: Any, open_page: Any) -> None:
    disk = ("--disk", f"web={image('web')}", "--cache", "off")
    first = serve(*disk, "--web", "127.0.0.1:0")
    port = port_of(first)
    page = open_page(port)
    page.wait_live()
    assert f"process {first.process.pid}" in page.text("#about")
    assert first.end() == 0
    page.until("document.querySelector('#state').dataset.state === 'gone'")
    assert "does not answer" in page.text("#state")
    second = serve(*disk, "--web", f"127.0.0.1:{port}")
    page.until("document.querySelector('#state').dataset.state === 'live'")
    pid = second.process.pid
    page.until(f"document.querySelector('#about').textContent.includes('process {pid}')")
    page.context.close()
    # The browser itself logs the requests that nobody answered, and nothing else is wrong.
    assert all("ERR_" in error for error in page.errors), page.errors
    assert page.elsewhere == []


def test_without_a_token_nothing_changes(serve: Any, image: Any, open_page: Any) -> None:
    daemon = serve("--disk", f"web={image('web')}", "--cache", "off", "--web", "127.0.0.1:0")
    port = port_of(daemon)
    sent = {"Content_Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    weight = {"disk": "web", "weight": 7}
    status, answer = ask(port, "POST", "/api/weight", weight, **sent)
    assert status == 403 and "read-only" in answer["error"]
    for method, path in (("POST", "/"), ("PUT", "/api/weight"), ("GET", "/api/weight")):
        assert ask(port, method, path, weight, **sent)[0] == 405
    assert ask(port, "POST", "/api/detach", weight, **sent)[0] == 405
    assert ask(port, "GET", "/api/status", Host=f"evil.example:{port}")[0] == 403
    assert ask(port, "GET", "/", Host="evil.example")[0] == 403
    assert ask(port, "GET", "/metrics")[0] == 404
    assert daemon.disk("web")["weight"] == 1
    page = open_page(port)
    page.wait_live()
    page.until("document.querySelector('#change').textContent.includes('read-only')")
    page.end()


def test_with_the_token_a_weight_changes(
    serve: Any, image: Any, open_page: Any, token: Path
) -> None:
    daemon = serve(
        *("--disk", f"web={image('web')}", "--cache", "off"),
        *("--web", "127.0.0.1:0", "--web-control", str(token)),
    )
    port = port_of(daemon)
    good = {"Content_Type": "application/json", "Authorization": f"Bearer {TOKEN}"}

    def post(body: Any, **headers: str) -> int:
        return ask(port, "POST", "/api/weight", body, **{**good, **headers})[0]

    weight = {"disk": "web", "weight": 7}
    assert post(weight, Authorization="Bearer " + "0" * 32) == 401
    assert post(weight, Authorization=TOKEN) == 401
    assert post(weight, Origin="http://evil.example") == 403
    assert post(weight, Host="evil.example") == 403
    assert post(weight, Content_Type="text/plain") == 415
    assert post({"disk": "web", "weight": 0}) == 400
    assert post({"command": "detach", "disk": "web"}) == 400
    assert post({"disk": "web", "weight": 1, "pad": "x" * 20_000}) == 413
    assert daemon.disk("web")["weight"] == 1
    assert post(weight, Origin=f"http://127.0.0.1:{port}") == 200
    assert daemon.disk("web")["weight"] == 7
    limit = {"disk": "web", "limits": "iops=500"}
    assert ask(port, "POST", "/api/limit", limit, **good)[0] == 200
    assert daemon.disk("web")["limits"] == "iops=500"
    assert ask(port, "POST", "/api/policy", {"policy": "cfq"}, **good)[0] == 200
    assert daemon.status()["devices"][0]["policy"] == "cfq"

    page = open_page(port)
    page.wait_live()
    page.tab.get_by_label("Token", exact=True).fill("not the token at all")
    page.tab.get_by_role("button", name="Unlock token").click()
    page.tab.get_by_label("Weight", exact=True).fill("9")
    page.tab.get_by_role("button", name="Set weight").click()
    page.tab.get_by_label("Token", exact=True).fill(TOKEN)  # it was wrong, and is asked for again
    page.errors.clear()  # the browser logs a refusal
    page.tab.get_by_role("button", name="Unlock token").click()
    page.tab.get_by_label("Weight", exact=True).fill("9")
    page.tab.get_by_role("button", name="Set weight").click()
    page.until("document.querySelector('.answer')?.textContent === 'done'")
    assert daemon.disk("web")["weight"] == 9
    cell = "document.querySelector(\"tr[data-disk='web'] td[data-key='weight']\").textContent"
    page.until(f"{cell} === '9'")
    page.end()


def test_a_token_of_others_is_refused(seekway: str, image: Any, token: Path) -> None:
    token.chmod(0o644)
    command = [seekway, "serve", "--disk", f"web={image('web')}", "--web-control", str(token)]
    checked = subprocess.run([*command, "--check-config"], capture_output=True, text=True)
    assert checked.returncode == 2
    assert "chmod 600" in checked.stderr


def test_the_control_socket_has_the_page_too(serve: Any, image: Any) -> None:
    daemon = serve("--disk", f"web={image('web')}", "--cache", "off")
    control = daemon.socket("control.sock")

    def threads() -> list[str]:
        tasks = Path(f"/proc/{daemon.process.pid}/task").iterdir()
        return [(task / "comm").read_text().strip() for task in tasks]

    def get(path: str, host: str = "localhost") -> bytes:
        return by_socket(control, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())

    assert "history" not in threads(), "nobody has looked yet"
    assert b"<title>Seekway</title>" in get("/")
    assert get("/metrics").startswith(b"HTTP/1.1 200")
    assert get("/metrics", "anything").startswith(b"HTTP/1.1 403")
    assert "history" not in threads(), "these need none"
    answer = get("/api/history")
    assert answer.startswith(b"HTTP/1.1 200")
    assert "history" in threads()
    wait_for(
        "a sample", lambda: len(json.loads(get("/api/history").split(b"\r\n\r\n")[1])["samples"])
    )
    assert get("/api/status", "evil.example").startswith(b"HTTP/1.1 403")
    post = b"POST /api/weight HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
    assert by_socket(control, post).startswith(b"HTTP/1.1 403")
    assert daemon.disk("web")["weight"] == 1, "the protocol of lines still works"


def test_hostile_clients_waste_their_own_time(serve: Any, image: Any) -> None:
    daemon = serve("--disk", f"web={image('web')}", "--cache", "off", "--web", "127.0.0.1:0")
    port = port_of(daemon)
    open_ones: list[socket.socket] = []

    def send(data: bytes) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", port), timeout=600)
        open_ones.append(client)
        client.sendall(data)
        return client

    def rest(client: socket.socket) -> bytes:
        try:
            return client.recv(65536)
        except ConnectionError:
            return b""  # it hung up with some of ours unread

    head = b"GET /api/status HTTP/1.1\r\nHost: localhost\r\n"
    # Half a request, and none at all: they keep a place until their time is over.
    for _ in range(10):
        send(head)
        send(b"")
    for garbage in (b"\x16\x03\x01\x02\x00\x01" * 200, b"GET\x00/\r\n\r\n", os.urandom(4000)):
        assert not rest(send(garbage)).startswith(b"HTTP/1.1 200")
    for huge in (b"A: " + b"x" * 100_000, b"A: b\r\n" * 5000, b"Host: evil\r\n" * 2 + b"\r\n"):
        assert not rest(send(head + huge)).startswith(b"HTTP/1.1 200")
    late = b"POST /api/weight HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
    assert not rest(send(late)).startswith(b"HTTP/1.1 200")
    assert ask(port, "GET", "/api/status")[0] == 200, "others are answered"
    # All places are taken: whoever manages the daemon does not notice.
    for _ in range(60):
        open_ones.append(socket.create_connection(("127.0.0.1", port), timeout=600))
    assert daemon.disk("web")["weight"] == 1
    # Its places come back by themselves: nobody keeps one for ever.
    for client in open_ones:
        client.close()

    def is_answered() -> bool:
        try:
            return ask(port, "GET", "/api/status")[0] == 200
        except (ConnectionError, http.client.HTTPException):
            return False

    wait_for("a place", is_answered)
    assert daemon.end() == 0


def test_many_disks(serve: Any, image: Any, open_page: Any, load: Any) -> None:
    names = [f"vm{n:02}" for n in range(40)]
    disks = [f for name in names for f in ("--disk", f"{name}={image(name, '1M')}")]
    daemon = serve(*disks, "--cache", "off", "--web", "127.0.0.1:0")
    load(daemon, "vm07")
    page = open_page(port_of(daemon), viewport={"width": 420, "height": 800})
    page.wait_live()
    assert page.tab.locator("#disk-table tbody tr").count() == 40
    page.tab.get_by_label("Find").fill("vm1")
    assert page.tab.locator("#disk-table tbody tr").count() == 10
    page.tab.get_by_label("Find").fill("")
    page.tab.locator("thead button", has_text="Requests/s").click()
    first = "document.querySelector('#disk-table tbody tr').dataset.disk"
    page.until(f"{first} === 'vm07'")
    page.until("document.querySelector('#chart-disks.wide') !== null")
    # Nothing is wider than a narrow window.
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= 420
    page.end()


def test_the_vendored_library_is_as_its_readme_says() -> None:
    folder = ROOT / "share" / "web" / "vendor"
    table = re.findall(r"\| `(\S+)` \| `([0-9a-f]{64})` \|", (folder / "README.md").read_text())
    assert len(table) == 3
    for name, checksum in table:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == checksum
