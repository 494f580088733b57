"""The documentation: every link of the pages leads somewhere, on a forge and in the site that
`make site` builds, and the site has every page."""

from __future__ import annotations

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from conftest import ROOT, need

DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), ROOT / "lab" / "README.md", *DOCS.rglob("*.md")])
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*?)\s*$", re.M)


def anchors(text: str) -> set[str]:
    """The anchors that a forge gives the headings of a page."""
    found: dict[str, int] = {}
    anchors = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"\]\([^)]*\)", "]", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        found[slug] = found.get(slug, 0) + 1
        anchors.add(slug if found[slug] == 1 else f"{slug}-{found[slug] - 1}")
    return anchors


def test_the_links_of_the_pages_lead_somewhere() -> None:
    texts = {page: page.read_text() for page in PAGES}
    headings = {page: anchors(text) for page, text in texts.items()}
    broken = []
    count = 0
    for page, text in texts.items():
        for link in LINK.findall(CODE.sub("", FENCE.sub("", text))):
            to = urlsplit(link)
            if to.scheme:
                continue
            count += 1
            target = (page.parent / unquote(to.path)).resolve() if to.path else page
            if not target.is_relative_to(ROOT) or not target.exists():
                broken.append(f"{page.relative_to(ROOT)}: no file {link}")
            elif to.fragment and to.fragment not in headings.get(target, {to.fragment}):
                broken.append(f"{page.relative_to(ROOT)}: no heading {link}")
    assert not broken, "\n".join(broken)
    assert count > 300, count


def test_the_summary_has_every_page() -> None:
    listed = LINK.findall((DOCS / "SUMMARY.md").read_text())
    assert len(listed) == len(set(listed)), "a page is listed twice in docs/SUMMARY.md"
    arranged = {(DOCS / link).resolve() for link in listed}
    missing = [
        str(p.relative_to(DOCS))
        for p in PAGES
        if p.is_relative_to(DOCS) and p.name != "SUMMARY.md" and p not in arranged
    ]
    assert not missing, f"docs/SUMMARY.md does not list these pages: {', '.join(missing)}"


class Page(HTMLParser):
    """The anchors and links of a page of HTML."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built anew."""
    need("cargo", "git")
    out = tmp_path_factory.mktemp("site")
    subprocess.run([ROOT / "scripts" / "site", "--out", out], check=True)
    return out


def test_the_links_of_the_site_lead_somewhere(site: Path) -> None:
    pages = {file: Page(file) for file in site.rglob("*.html")}
    broken = []
    for file, page in pages.items():
        for link in page.links:
            to = urlsplit(link)
            if to.scheme or to.netloc or file.name in ("404.html", "toc.html"):
                # Those two are not at one place: what they name is relative to the root.
                continue
            target = (file.parent / unquote(to.path)).resolve() if to.path else file
            if not target.is_file() or not target.is_relative_to(site):
                broken.append(f"{file.relative_to(site)}: no file {link}")
            elif to.fragment and target in pages and to.fragment not in pages[target].ids:
                broken.append(f"{file.relative_to(site)}: no anchor {link}")
    assert not broken, "\n".join(broken)
    assert len(pages) > 60, len(pages)


def test_the_site_needs_no_network(site: Path) -> None:
    wanted = re.compile(r"""(?:src=|<link[^>]*href=|url\()["']?(?:https?:)?//""")
    needing = [
        str(f.relative_to(site)) for f in site.rglob("*.html") if wanted.search(f.read_text())
    ]
    assert not needing, needing


def test_the_site_has_every_page_and_a_search(site: Path) -> None:
    pages = LINK.findall((DOCS / "SUMMARY.md").read_text())
    for link in pages:
        page = (DOCS / link).resolve().relative_to(ROOT)
        made = str(page.with_suffix(".html")).replace("README.html", "index.html")
        assert (site / made).is_file(), made
    assert list(site.glob("searchindex*.js"))
