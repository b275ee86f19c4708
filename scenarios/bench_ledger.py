"""Booting a ledger that retains a million runs. No Ray; each boot is a process of its own, as a supervisor's is.

`python -m scenarios.bench_ledger DIRECTORY` is that process: it boots once, and prints the seconds and its peak of memory.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from ledger import FactRow, Record, Run, Status, View, dirty_records, encode, meta_of, pack, restore, run_record
from ledger.duckdb_store import DuckDBStore
from scenarios.bench_report import Baseline, Bench, Figure, at_most

CHUNK = 50_000
FACTS_EACH = 3
DAY_MS = 1_750_000_000_000
