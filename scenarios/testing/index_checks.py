"""The indexes of a supervisor's view, compared with a look at all its records (invariant 8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from perdure.ledger import Activation, MailState, View, ancestors


def out_of_step(view: View) -> Iterator[str]:
    """Indexes that disagree with their records."""
    children: dict[str, set[str]] = {}
    placed: Counter[str] = Counter()
    awaiting: Counter[str] = Counter()
    mailbox: dict[str, set[str]] = {}
    for run in view.runs.values():
        placed[run.parent] += run.is_placed
        if run.is_live:
            children.setdefault(run.parent, set()).add(run.run_id)
            awaiting[run.parent] += run.is_awaited and run.parent != ""
    for mail in view.mail.values():
        if mail.state is MailState.PENDING:
            mailbox.setdefault(mail.recipient, set()).add(mail.mail_id)
    yield from _unequal("children", {key: set(family) for key, family in view.children.items()}, children)
    yield from _unequal("placed", view.placed, {key: count for key, count in placed.items() if count})
    yield from _unequal("awaiting", view.awaiting, {key: count for key, count in awaiting.items() if count})
    yield from _unequal("mailbox", {key: set(box) for key, box in view.mailbox.items()}, mailbox)
    yield from _holdings(view)
    yield from _queues(view)
    yield from _loads(view)


def _unequal(name: str, kept: dict[str, Any], made: dict[str, Any]) -> Iterator[str]:
    for key in kept.keys() | made.keys():
        if kept.get(key) != made.get(key):
            yield f"index {name}[{key!r}] is {kept.get(key)!r}; the records say {made.get(key)!r}"


def _queues(view: View) -> Iterator[str]:
    waiting = dict.fromkeys([*view.queues, *(run_id for held in view.held.values() for run_id in held)])
    for run_id in waiting:
        run = view.runs.get(run_id)
        if run is None or not run.is_live or run.is_placed:
            yield f"run {run_id} stands in a queue, and waits for no place"
    for run in view.runs.values():
        seen = run.run_id in waiting or run.run_id in view.timers.armed or run.parked
        if run.is_live and not run.is_placed and not run.teardown and not seen:
            yield f"run {run.run_id} waits for a place, and is in no queue and no timer"


def _holdings(view: View) -> Iterator[str]:
    """The indexes of the view, against a look at every record."""
    runs, agents, mail = view.runs.values(), view.agents.values(), view.mail.values()
    awake = {each.agent_id for each in agents if each.host_id or each.unclean}
    alarmed = {each.agent_id for each in agents if each.alarm_at_ms}
    parked = {each.mail_id for each in mail if each.state is MailState.PARKED}
    families = {
        each for each in (*view.agents, *view.mailbox, *view.parked_mail, *view.asked_for, *view.wanted) if ">" in each
    }
    made: dict[str, tuple[Any, Any]] = {
        "tallied": (+view.tallied, Counter(run.status for run in runs if not run.cleared)),
        "live": (view.live, sum(run.is_live for run in runs)),
        "settled": (set(view.settled), {run.run_id for run in runs if run.is_settled and not run.cleared}),
        "asked_for": (
            {(parent, key) for parent, keys in view.asked_for.items() for key in keys},
            {(run.parent, run.run_id) for run in runs},
        ),
        "awake": (set(view.awake), awake),
        "alarmed": (set(view.alarmed), alarmed),
        "parked_mail": ({key for keys in view.parked_mail.values() for key in keys}, parked),
        "families": (
            {(above, each) for each in families for above in ancestors(each) if each in view.families.of(above)},
            {(above, each) for each in families for above in ancestors(each)},
        ),
        "wakes": (set(view.wakes), {agent for agent, line in view.wanted.items() if line is not None}),
    }
    yield from (
        f"index {name} is {kept}; the records say {said}" for name, (kept, said) in made.items() if kept != said
    )
    for run in runs:
        if not run.is_live and run.run_id in view.timers.armed and run.run_id not in view.agents:
            yield f"run {run.run_id} has ended, and is armed"


def _loads(view: View) -> Iterator[str]:
    tenants: dict[str, list[str]] = {}
    for activation in view.agents.values():
        if activation.host_id:
            tenants.setdefault(activation.host_id, []).append(activation.agent_id)
    for host in view.hosts.values():
        theirs = tenants.get(host.host_id, [])
        if set(host.tenants) != set(theirs):
            yield f"host {host.host_id} has tenants {sorted(host.tenants)}; the records say {sorted(theirs)}"
        load = sum(not view.awaiting.get(agent) for agent in host.tenants)
        if load != host.load:
            yield f"host {host.host_id} has load {host.load}; its tenants make {load}"
    for run in view.runs.values():
        lives = view.agents.get(run.child, Activation(run.child)).host_id
        if run.is_placed and lives != run.host_id:
            yield f"run {run.run_id} is on host {run.host_id}, and its child on {lives!r}"
