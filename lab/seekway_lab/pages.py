"""Pages of the papers' experiments, made of the papers' claims and of the recorded rows.

Reads docs/experiments/claims.toml and results/*.csv; writes the verdicts into the pages, between
their markers. This module needs no wheel.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

from seekway_lab import records
from seekway_lab.records import LabError, Record

#: The papers' names: titles, and patterns of their experiments' names.
PAPERS = {
    "pregather": ("Pregather", ["pregather-*"]),
    "cats": ("CATS and the throttle", ["cats-*", "table-*", "vpt-*"]),
    "vmcd": ("VMCD", ["vmcd-*"]),
    "vio": ("VIO-prefetching", ["vio-*"]),
    "migrate": ("vMigrater", ["inactivity", "migrate-*"]),
}
UNDECIDED = "undecided: setting"
DECIDED = ["holds", "exceeds", "in part", "refuted"]
VERDICTS = [*DECIDED, UNDECIDED]
#: Verdict of a row whose machine measured something else.
VOID = "void"
# The keys of a claim, and those that it may have besides.
KEYS = {"paper", "where", "claim", "published", "experiment", "rows"}
# `text`: rows of the rules in the paper's text, where `rows` are of its authors' program.
MAY = {"because", "undecided", "text"}


def whole(verdicts: list[str]) -> str:
    """The verdict on a claim that several rows decide: theirs if they agree, else in part."""
    kinds = set(verdicts)
    if len(kinds) == 1:
        return kinds.pop()
    return "holds" if kinds == {"holds", "exceeds"} else "in part"


def judged(claim: dict[str, Any], rows: dict[tuple[str, str], Record]) -> dict[str, Any]:
    """A claim with its figures and its verdict. Raises `LabError` where it does not stand."""
    about = f"claims.toml: {claim.get('paper')}, {claim.get('where')}: {claim.get('claim')}"
    if missing := KEYS - claim.keys():
        raise LabError(f"{about}: lacks {', '.join(sorted(missing))}")
    if more := claim.keys() - KEYS - MAY:
        raise LabError(f"{about}: no such key: {', '.join(sorted(more))}")
    if not claim["rows"]:
        raise LabError(f"{about}: no row decides it")
    found = []
    for name in names_of(claim):
        row = rows.get((claim["experiment"], name))
        if row is None:
            raise LabError(f"{about}: {claim['experiment']} has no row '{name}'")
        if row["verdict"] not in [*DECIDED, VOID]:
            raise LabError(f"{about}: the row '{name}' is {row['verdict']}: no figure of a paper")
        found.append(row)
    by_rows = whole([row["verdict"] for row in found])
    if void := [row["why"] for row in found if row["verdict"] == VOID]:
        claim = {"undecided": f"void: {void[0]}", **claim}
    verdict = UNDECIDED if "undecided" in claim else by_rows
    if verdict != "holds" and not (claim.get("undecided") or claim.get("because")):
        raise LabError(f"{about}: {verdict}, and no 'because' says why")
    ours = [
        {"row": r["row"], "paper": r["paper"], "ours": r["ours"], "unit": r["unit"]} for r in found
    ]
    return {**claim, "verdict": verdict, "by_rows": by_rows, "ours": ours}


def names_of(claim: dict[str, Any]) -> list[str]:
    """The rows that decide a claim."""
    return [*claim["rows"], *claim.get("text", [])]


def claims_of(docs: Path) -> dict[str, Any]:
    """All claims, judged by the rows of the last run."""
    folder = docs / "experiments"
    data = tomllib.loads((folder / "claims.toml").read_text())
    rows: dict[tuple[str, str], Record] = {}
    asked: dict[str, list[Record]] = {}
    for paper in PAPERS:
        ours = records.read(folder / "results" / f"{paper}.csv")
        rows |= _by_name(ours)
        asked[paper] = [row for row in ours if row["asked"]]
    rows |= _by_name(records.read(folder / "results" / "live.csv"))
    claims = [judged(claim, rows) for claim in data["claim"]]
    used = Counter((c["experiment"], name) for c in claims for name in names_of(c))
    of_papers = [*DECIDED, VOID]
    beside = [key for key, row in rows.items() if row["paper"] and row["verdict"] in of_papers]
    for key in [*beside, *used]:
        if used[key] != 1:
            raise LabError(
                f"claims.toml: {key[0]}, row '{key[1]}': in {used[key]} claims, not in one"
            )
    return {"claims": claims, "not_repeated": data.get("not_repeated", []), "asked": asked}


def _by_name(found: list[Record]) -> dict[tuple[str, str], Record]:
    return {(row["experiment"], row["row"]): row for row in found}


# --- writing


def figures(values: list[str], unit: str) -> str:
    """Figures and their unit, for readers: three significant digits; a dash for none."""
    short = [format(Decimal(f"{float(value):.3g}"), ",f") for value in values]
    return ", ".join(short) + (unit if unit == "×" else f" {unit}".rstrip()) if short else "–"


def escaped(text: str) -> str:
    """Text that Markdown leaves as it is, but for code in backticks."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([\\*_\[\]<>|])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A table of Markdown; heads that end with a colon are of numbers."""
    rules = ["--:" if head.endswith(":") else ":--" for head in heads]
    lines = [[head.rstrip(":") for head in heads], rules, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def ours_of(claim: dict[str, Any]) -> str:
    """Our figures of a claim: up to three, else the least and the largest."""
    if text := claim.get("text"):
        both = [[r for r in claim["ours"] if (r["row"] in text) == of] for of in (False, True)]
        program, letter = (ours_of({"ours": rows}) for rows in both)
        return f"{program} (text: {letter})"
    by_unit: dict[str, list[str]] = {}
    for row in claim["ours"]:
        if row["ours"]:
            by_unit.setdefault(row["unit"], []).append(row["ours"])
    if len(by_unit) == 1 and len(claim["ours"]) > 3:
        [(unit, values)] = by_unit.items()
        least, *_, largest = sorted(values, key=float)
        return figures([least, largest], unit).replace(", ", " to ")
    return ", ".join(figures(values, unit) for unit, values in by_unit.items()) or "–"


def claims_table(found: dict[str, Any], paper: str) -> str:
    """The table of a paper's claims with numbered reasons, and the claims not repeated."""
    claims = [c for c in found["claims"] if c["paper"] == paper]
    reasons: dict[str, int] = {}
    lines = []
    where = ""
    for c in claims:
        verdict = c["verdict"].removesuffix(": setting")
        if verdict != "holds":
            why = c.get("undecided") or c["because"]
            verdict = f"{verdict} ({reasons.setdefault(why, len(reasons) + 1)})"
        # A claim without a place is of the same place as the one before.
        claim = c["claim"] if c["where"] == where else f"{c['where']}: {c['claim']}"
        where = c["where"]
        lines.append([escaped(claim), escaped(c["published"]), ours_of(c), verdict])
    text = f"\n[The verdicts](README.md), [every row](results/{paper}.csv):\n\n"
    text += table(["claim", "paper", "ours", "verdict"], lines)
    text += "\nWhy:\n\n"
    text += "".join(f"{number}. {escaped(why)}\n" for why, number in reasons.items())
    others = [c for c in found["not_repeated"] if c["paper"] == paper]
    if others:
        text += "\nNot repeated:\n\n"
        texts = (f"{c['where']}: {c['claim']}: {c['because']}" for c in others)
        text += "".join(f"- {escaped(text)}\n" for text in texts)
    return text + "\n"


def asked_table(found: dict[str, Any], paper: str) -> str:
    """The rows of a paper's experiments that do not meet Seekway's own targets."""
    rows = found["asked"][paper]
    below = [row for row in rows if row["asked"] == "missed"]
    met = "All" if not below else f"{len(rows) - len(below)} of"
    text = f"\n{met} {len(rows)} targets of Seekway's own are met.\n\n"
    lines = [[escaped(r["row"]), figures([r["ours"]], r["unit"]), asked(r["why"])] for r in below]
    return text + (table(["not met", "ours", "asked"], lines) + "\n" if lines else "")


def asked(why: str) -> str:
    """The target in a row's reason."""
    found = re.search(r"([^;]*) is asked: NOT MET", why)
    return escaped(found[1].strip() if found else "")


def sentence(claims: list[dict[str, Any]]) -> str:
    """Count the claims by verdict."""
    counts = Counter(c["verdict"] for c in claims)
    decided = sum(counts[v] for v in DECIDED)
    return (
        f"Of {len(claims)} claims {decided} can be decided. Hold: {counts['holds']}; with more "
        f"than twice the paper's gain: {counts['exceeds']}; in part: {counts['in part']}; refuted: "
        f"{counts['refuted']}. Undecided, because our setting is not the paper's: "
        f"{counts[UNDECIDED]}."
    )


def counts_table(found: dict[str, Any]) -> str:
    """The verdicts by paper."""
    lines = []
    sums: Counter[str] = Counter()
    for paper, (title, _) in PAPERS.items():
        counts = Counter(c["verdict"] for c in found["claims"] if c["paper"] == paper)
        counts["not repeated"] = sum(c["paper"] == paper for c in found["not_repeated"])
        sums += counts
        lines.append(
            [f"[{title}]({paper}.md)", *(str(counts[v]) for v in [*VERDICTS, "not repeated"])]
        )
    lines.append(["all", *(str(sums[v]) for v in [*VERDICTS, "not repeated"])])
    heads = ["paper", *(f"{v}:" for v in [*VERDICTS, "not repeated"])]
    return f"\n{sentence(found['claims'])}\n\n{table(heads, lines)}\n"


def between(text: str, name: str, new: str, path: Path) -> str:
    """The page with `new` between its markers of this name."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, found, rest = text.partition(begin)
    _, ends, tail = rest.partition(end)
    if not found or not ends:
        raise LabError(f"{path}: no lines {begin.strip()} and {end}")
    return head + begin + new + end + tail


def pages(found: dict[str, Any], docs: Path) -> dict[Path, str]:
    """Every file that is made of the claims, with its text."""
    folder = docs / "experiments"
    texts = {}
    for paper in PAPERS:
        path = folder / f"{paper}.md"
        text = between(path.read_text(), "claims", claims_table(found, paper), path)
        texts[path] = between(text, "asked", asked_table(found, paper), path)
    path = folder / "README.md"
    texts[path] = between(path.read_text(), "claims", counts_table(found), path)
    return texts
