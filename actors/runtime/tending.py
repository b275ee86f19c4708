"""What those who look after a served directory ask of its supervisor: which storages there should be, and that its ledger keeps still.

Everything here blocks. `ask` asks the supervisor, as `Runtime.ask` does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from perdure.actors.runtime.directory_files import findings_in
from perdure.ledger import AGENTS, LEDGER, KnownAgent, KnownAgents, bucket_of, given_as
from perdure.ledger.maintenance.examination import examine_storages
from perdure.ledger.store.integrity import Finding, lock_of

PAGE: Final = 20_000
ADVICE: Final = "mount the directory's storage there, at the same path, or take the node out of the cluster; it is asked again by itself"

Asking = Callable[..., Any]


class ServedSteward:
    """The supervisor of a directory keeps its ledger as a backup needs it."""

    def __init__(self, ask: Asking) -> None:
        self._ask = ask

    def hold(self) -> object:
        return self._ask("keep", "hold", [])

    def cut(self) -> object:
        return self._ask("keep", "cut", [])


def served_findings(ask: Asking, data: Path, *, deep: bool = False) -> list[Finding]:
    """What is to be said of a directory that is served: all but the ledger's files, which its supervisor has verified at its start."""
    told = ask("ps", 0)
    served = told["supervisor"]
    who = f"process {served['pid']} on {served['node']}"
    what = f"{given_as(data)} is served by {who}, which has verified the ledger when it started"
    findings = [Finding("ok", what, "stop it to look again")]
    advice = "mend the cause; hosts are tried again by themselves, and what waits for one goes on then"
    findings += [Finding("damage", each["told"], advice) for each in told["unstartable"]]
    findings += [Finding("warning", each["told"], ADVICE) for each in told["elsewhere"]]
    if url := bucket_of(data):  # what is here is a cache
        advice = f"`perdure doctor --deep --data {url}` does"
        return [*findings, Finding("ok", "what is in the bucket was not verified again here", advice)]
    if not lock_of(data / LEDGER).exists():
        what = f"the lock of the ledger was deleted while {who} serves it, so another process could begin to write beside it"
        findings.append(Finding("damage", what, "stop what serves it with `perdure stop`, and start it again"))
    found = examine_storages(data / AGENTS, KnownAgents(standing_by(ask)), deep=deep)
    if any(each.severity == "damage" for each in found):  # an agent may have been deleted since
        found = examine_storages(data / AGENTS, KnownAgents(standing_by(ask)), deep=deep)
    return findings + found + findings_in(data)


def standing_by(ask: Asking) -> dict[str, KnownAgent]:
    known: dict[str, KnownAgent] = {}
    after: str | None = ""
    while after is not None:
        told = ask("keep", "storages", [after, PAGE])
        known |= {agent: KnownAgent(*standing) for agent, *standing in told["agents"]}
        after = told["next"]
    return known
