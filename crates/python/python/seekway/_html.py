"""Results as HTML, for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from seekway.comparison import told_apart

if TYPE_CHECKING:
    from seekway.comparison import Comparison

_SHOWN = (
    ("policy", "policy"),
    ("seed", "seed"),
    ("MiB/s", "mib_s"),
    ("IOPS", "iops"),
    ("mean, ms", "mean_ms"),
    ("p99, ms", "p99_ms"),
    ("worst, ms", "max_ms"),
    ("max-min share", "max_min_share"),
)


def comparison(made: Comparison) -> str:
    """The table of all VMs together, and the warnings."""
    rows = made.table
    shown = [*_SHOWN, *((f"{op} p99, ms", f"{op}_p99_ms") for op in told_apart(rows))]
    head = "".join(f"<th>{escape(title)}</th>" for title, _ in shown)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(row[key])}</td>" for _, key in shown) + "</tr>"
        for row in rows
    )
    warnings = "".join(f"<p>⚠ {escape(warning)}</p>" for warning in made.warnings)
    return (
        f"<p>{len(rows)} runs on {escape(made.device)}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{warnings}"
    )


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "–" if value is None else escape(str(value))
