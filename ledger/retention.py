"""Whether anybody still needs an ended run. Its age and number are the policy's business (`policies.retention`).

A run goes only together with its family: its child, the child's sub-agents, and the runs that they requested, whose storages are deleted
with it. It stays if anything of this holds:

- it has no hard end, or one of its family has none: what is live, and what a late result may still repair;
- mail about one of them, or for one of them, is pending or parked;
- one of them is awake, owes work, or has an alarm: schedules and fibers that go on after the run;
- its child, or that of a run of its family, was woken by a call or a letter of somebody: then it is an agent of its own standing;
- the run of its parent has not ended: after a death the parent asks for it again, and must find it.

Agents that are no children of runs are never deleted here. The decision is made in one step with the tombstones (`RunCleared`), so nothing
can begin in between. A death after that leaves tombstones, and the deletion goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from perdure.ledger.facts import Fact
from perdure.ledger.ids import name_of, parent_of
from perdure.ledger.requests import clear
from perdure.ledger.run import Run
from perdure.ledger.stimulus import Clear, Retire
from perdure.ledger.view import View

FAMILY_MAX: Final = 1_000
"""Runs of one family that are cleared at once by themselves. A larger one is for `perdure clear`."""


def retire(view: View, asked: Retire) -> Iterator[Fact]:
    """Clear those of these runs that nobody needs."""
    runs = [run for run_id in asked.run_ids if (run := view.runs.get(run_id)) is not None]
    spoken_of = {mail.run_id for mail in view.mail.values()} if runs else set()
    free = [run.run_id for run in runs if not _is_needed(view, run, spoken_of, set(asked.called))]
    if free:
        yield from clear(view, Clear(free))


def _is_needed(view: View, run: Run, spoken_of: Collection[str], called: Collection[str]) -> bool:
    """Whether anybody needs this run, or one of its family. What is live, owes something, or has mail is in memory."""
    root = _root(run.parent)
    asker = view.runs.get(name_of(root))
    if asker is not None and asker.child == root and not asker.is_settled:
        return True
    due, count = [run], 0
    while due:
        each = due.pop()
        count += 1
        family = view.families.of(each.child)
        over = each.is_hard and each.is_settled and not each.cleared and each.run_id not in spoken_of
        if count > FAMILY_MAX or not over or any(_is_busy(view, agent, called) for agent in family):
            return True
        due += [view.runs[run_id] for agent in family for run_id in view.asked_for.get(agent, ())]
    return False


def _is_busy(view: View, agent: str, called: Collection[str]) -> bool:
    """Whether an agent is awake, owes work, has mail, or is one of its own standing."""
    kept = view.asleep.get(agent)
    is_called = agent in called or (kept is not None and kept.called)
    return is_called or any(agent in index for index in (view.agents, view.mailbox, view.wanted, view.parked_mail))


def _root(agent: str) -> str:
    """The agent at the root of an agent's family."""
    while parent := parent_of(agent):
        agent = parent
    return agent
