"""A ledger without a supervisor, opened by this process without Ray.

Decisions are made by the same function as a supervisor's, and appended to the same store. The next supervisor performs their effects.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from perdure import actors
from perdure.ledger import (
    AGENTS,
    LEDGER,
    BadRequest,
    Cancel,
    Clear,
    Forget,
    Kept,
    Retry,
    Run,
    Stimulus,
    UnknownRun,
    about_agent,
    at_stake,
    audit,
    code_counts,
    code_standings,
    decide,
    enact,
    explain,
    inspected,
    listed,
    overview,
    pack,
    parked,
    restore,
    run_from,
    unpack_opened,
)
from perdure.ledger.storage.cabinet import stored_below
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.integrity import is_begun
from perdure.policies import Limits

CLEARED_AT_ONCE: Final = 500
FAMILY_MAX: Final = 100_000


class ColdLedger:
    """Answers like a supervisor, from the files. Raises a `LedgerError` if they cannot be opened."""

    def __init__(self, data: Path) -> None:
        path = data / LEDGER
        actors.check_directory(data)
        if not is_begun(path):
            raise BadRequest("data", f"there is no ledger in {data}: nothing has run there; see that the path is right")
        self._store, self._storages = DuckDBStore(path), data / AGENTS
        boot = self._store.boot()
        self._view, self._findings = restore(boot), boot.findings
        self._in_force = Limits.recorded(self._view.limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def ask(self, name: str, *args: Any) -> Any:
        """Answer a question of `Runtime.ask`, or do what needs no supervisor."""
        return unpack_opened(pack(getattr(self, f"_{name}")(*args)))

    def cancel(self, run_id: str, reason: str) -> None:
        """Cancel a run. The next supervisor stops its child."""
        self._run(run_id)
        self._settle(Cancel(run_id, None, reason))

    def retry(self, key: str) -> None:
        """Try a run or a parked mail again. The next supervisor begins it."""
        with suppress(UnknownRun):  # bring it back into memory, if it is a run
            self._run(key)
        self._settle(Retry(key))

    def clear(self, *, status: Sequence[str] | None = None, older_than: int | None = None) -> int:
        """Clear runs; live ones are cancelled first. Returns how many."""
        count = 0
        statuses = None if status is None else list(status)
        while found := self._list(None, statuses, older_than, CLEARED_AT_ONCE):
            self._clear([row["run_id"] for row in found])
            count += len(found)
        return count

    def _clear(self, run_ids: list[str]) -> None:
        self._recall_families([self._run(run_id).child for run_id in run_ids])
        self._settle(Clear(run_ids))

    def _forget(self, agent: str) -> None:
        self._recall_families([agent])
        self._settle(Forget(agent))

    def _at_stake(self, run_ids: list[str], agent: str = "") -> dict[str, int]:
        self._recall_families([*(self._run(run_id).child for run_id in run_ids), *([agent] if agent else [])])
        return at_stake(self._view, run_ids, agent).told(partial(stored_below, self._storages))

    def _recall_families(self, agents: list[str]) -> None:
        """With agents goes what they and their children had asked for, which may be in the snapshot alone."""
        while agents:
            for record in self._store.family_runs(agents.pop(), FAMILY_MAX):
                agents.append(self._view.recall(run_from(record)).child)

    def _settle(self, stimulus: Stimulus) -> None:
        at_ms = self._now_ms()
        rows = enact(self._view, decide(self._view, stimulus, at_ms, self._in_force), at_ms)
        self._store.append(rows, [])

    def _now_ms(self) -> int:
        return max(time.time_ns() // 1_000_000, self._view.at_ms)

    def _run(self, run_id: str) -> Run:
        """A run, brought back into memory if it is only in the snapshot."""
        if run_id not in self._view.runs:
            for record in self._store.records("runs", [run_id]):
                if record.body:
                    self._view.recall(run_from(record))
        run = self._view.runs.get(run_id)
        if run is None or run.cleared:
            raise UnknownRun("run_id", f"no run {run_id!r} is known")
        return run

    def _ps(self, live_max: int = 200) -> dict[str, Any]:
        """Nobody is awake, and there is no host: those that the ledger knows of served it last."""
        told = overview(self._view, live_max)
        nowhere = {
            "hosts": [],
            "agents": [],
            "live": [{**row, "host": None} for row in told["live"]],
            "supervisor": None,
        }
        return {**told, **nowhere, "code": code_counts(self._view, served=False)}

    def _upgrade(self, agent_type: str | None = None, _now: bool = False) -> list[dict[str, Any]]:
        """Nobody is awake, so nobody can be asked to leave: whoever wakes next has the newest code."""
        return code_standings(self._view, agent_type, served=False)

    def _show(self, run_id: str) -> dict[str, Any]:
        run = self._run(run_id)
        told = {**inspected(run), "options": run.options}
        if run.large_output:
            body = self._store.payload(run_id, "output")
            told["output"] = None if body is None else Kept(body)
        return told

    def _agent(self, agent_id: str) -> dict[str, Any] | None:
        """Nobody is awake: a life that the ledger believes in was cut off, and the next supervisor will see to it."""
        known = about_agent(self._view, agent_id)
        return known if known is None else {**known, "host": None, "was_cut_off": known["host"] is not None}

    def _explain(self, run_id: str) -> list[str]:
        return explain(self._view, self._run(run_id), self._now_ms(), self._in_force, served=False)

    def _list(self, *asked: Any) -> list[dict[str, Any]]:
        return listed(self._view.runs, self._store.ended_runs(*asked), *asked)

    def _audit(self) -> dict[str, Any]:
        return {**audit(self._view), "parked_mail": parked(self._view), "findings": self._findings}

    def _limits(self) -> dict[str, Any]:
        return asdict(self._in_force)
