"""Decisions about code that changes: which version of their code runs and agents have.

| what | has the code |
|---|---|
| a run, its child and what belongs to that, in all attempts | with which it was requested |
| a run that is tried again, and a parked one for which code comes | that came last for its type |
| any other agent, each time that it is woken: for calls, mail, its fibers, schedules and turns | that came last for its type |

Code comes with the programs that open the directory (`Adopt`). It is named by its package, so a host has one version of it, and two
versions never meet in one process. Which code came last is a fact: it outlives the program that brought it.
"""

from __future__ import annotations

from collections.abc import Iterator

from perdure.ledger.facts import CodeAdopted, Fact, RunRetried
from perdure.ledger.ids import origin_of
from perdure.ledger.stimulus import Adopt
from perdure.ledger.view import View


def adopt(view: View, said: Adopt) -> Iterator[Fact]:
    """Code came. Parked runs that have waited for it are tried with it: also if it is the same, because a person brought it again."""
    news = [origin for origin in said.origins if view.code.get(origin) != said.package]
    if news:
        yield CodeAdopted(said.package, news)
    for run_id in list(view.parked):
        if origin_of(view.runs[run_id].agent_type) in said.origins:
            yield RunRetried(run_id, said.package)
