"""Runs and hosts as a person sees them in a live table, by the rows of the overview (`ps`)."""

from __future__ import annotations

from typing import Any, Final

from rich.progress_bar import ProgressBar
from rich.text import Text

WORDS_MAX: Final = 3


def run_cells(row: dict[str, Any]) -> tuple[Any, ...]:
    """A run: its id, attempt, bar, words, milestones and host."""
    progress = row["progress"] or {}
    bar = ProgressBar(total=1.0, completed=min(1.0, progress.get("fraction") or 0.0), width=16)
    words = f"{progress.get('phase') or row['status']}  {progress.get('message') or ''}".rstrip()
    milestones = " ".join(row["milestones"][-WORDS_MAX:])
    return row["run_id"][:14], str(row["attempt"]), bar, words, milestones, (row["host"] or "–")[:12]


def hosts_line(overview: dict[str, Any]) -> Text:
    """All hosts in one line."""
    hosts = [
        f"{host['host'][:12]}: {host['tenants']} agent{'s' * (host['tenants'] != 1)}, {host['rss_mb']} MB"
        if host["up"]
        else f"{host['host'][:12]}: starting"
        for host in overview["hosts"]
    ]
    return Text("hosts  " + "   ".join(hosts or ["none yet"]), style="dim", no_wrap=True, overflow="ellipsis")
