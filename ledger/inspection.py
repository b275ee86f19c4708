"""Read-only questions about the view: one run in full, lists, the counts, and the audit equation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from perdure.ledger.activation import Activation, blind, drained
from perdure.ledger.asks import ask_id, asks_stand
from perdure.ledger.chosen_runs import wanted_of
from perdure.ledger.codec import unpack
from perdure.ledger.effects import about
from perdure.ledger.facts import MailSuppressed, RunCleared, UndoBegan
from perdure.ledger.mail import ANSWER, MailState
from perdure.ledger.old_code import code_counts
from perdure.ledger.placements import hindrance
from perdure.ledger.requests import clear, forget
from perdure.ledger.run import Run, outcome_of, run_of
from perdure.ledger.snapshot import run_from
from perdure.ledger.status import HARD, LIVE, Status, Undo
from perdure.ledger.stimulus import Clear, Forget
from perdure.ledger.store.store import First, Record, Wanted
from perdure.ledger.values import Kept
from perdure.ledger.view import View
from perdure.policies import INFINITY, condition_in_words


def inspected(run: Run) -> dict[str, Any]:
    """What a parent (or `perdure show`) learns of a run: its outcome so far, progress and milestones included."""
    told = {**about(run), **outcome_of(run), "parent": run.parent, "digest": run.digest, "attempt": run.attempt}
    told["output"] = None if run.output is None else Kept(run.output)
    told["host"], told["signal_at_ms"] = run.host_id, run.signal_at_ms or None
    is_put_off = run.parked or run.is_put_off or run.waits_for_others
    told["waits_for_host"] = run.is_live and not run.is_placed and not is_put_off
    told["waits"] = waits_of(run)
    told["undoing"], told["parked"] = run.is_undoing, run.parked or None
    condition = run.condition if run.waits_for_others else None
    told["waits_for"] = None if condition is None else condition_in_words(condition)
    told["lost_by"] = (run.cause or None) if told["waits_for_host"] else None
    if run.progress is not None:
        told["progress"] = {**unpack(run.progress), "at_ms": run.progress_at_ms}
        told["progress"].pop("live_data", None)
    told["milestones"] = [
        {"name": name, "sequence": number, "at_ms": at_ms, **unpack(body)}
        for number, name, _, at_ms, body, _ in run.milestones
    ]
    told["deliveries"] = {str(slot): str(state) for slot, state in run.slots.items()}
    return told


def waits_of(run: Run) -> dict[str, object] | None:
    """What a run waits for without a process: events by name, an instant, or to be let go on; None if it does not."""
    if not (run.wait or run.paused):
        return None
    wait = run.wait
    return {
        "events": [] if wait is None else [each for each in wait.events if not each.startswith(ANSWER)],
        "until_ms": None if wait is None or math.isinf(wait.until_ms) else int(wait.until_ms),
        "since_ms": None if wait is None else run.waits_since_ms,
        "paused": run.paused,
        "asks": [ask_id(run.run_id, ask.number) for ask in run.open_asks],
    }


def receipt(view: View, run: Run, mail_id: str) -> dict[str, object]:
    """What became of an event that was sent to a run: it `waits`, was `read`, or was `withdrawn` because the run had ended. An event that
    is not known, or was read before the last thousand, is `unknown`."""
    told: dict[str, object] = {
        "run_id": run.run_id,
        "status": "unknown",
        "attempt": None,
        "after_step": None,
        "at_ms": None,
    }
    read = (run.receipts or {}).get(mail_id)
    if read is not None:
        attempt, after, at_ms = read
        return told | {"status": "read", "attempt": attempt, "after_step": after or None, "at_ms": at_ms}
    if mail_id in view.mail:
        return told | {"status": "waits"}
    return told | {"status": "withdrawn"} if run.is_hard else told


class AtStake(NamedTuple):
    """What would be deleted: runs, and those of them that are live; mail that would be withdrawn; and the sub-agents that the view knows of
    each agent that would go."""

    runs: int
    live: int
    mail: int
    families: dict[str, int]

    def told(self, stored_below: Callable[[str], int]) -> dict[str, int]:
        sub_agents = sum(max(known, stored_below(agent)) for agent, known in self.families.items())
        return {"runs": self.runs, "live": self.live, "sub_agents": sub_agents, "mail": self.mail}


def at_stake(view: View, run_ids: list[str], agent: str) -> AtStake:
    """What would go with these runs, or with this agent. Nothing changes. All that belongs to them has to be in memory."""
    facts = [*clear(view, Clear(run_ids)), *(forget(view, Forget(agent)) if agent else ())]
    ends = [
        each
        for each in facts
        if isinstance(each, RunCleared) or (isinstance(each, UndoBegan) and each.undo == Undo.CLEARED)
    ]
    runs = [view.runs[key] for key in dict.fromkeys(each.run_id for each in ends)]
    heads = dict.fromkeys([*([agent] if agent else []), *(run.child for run in runs if run.child)])
    withdrawn = sum(isinstance(each, MailSuppressed) for each in facts)
    known = {head: len(view.families.of(head)) - 1 for head in heads}
    return AtStake(len(runs), sum(run.status in LIVE for run in runs), withdrawn, known)


def line(run: Run) -> dict[str, object]:
    told = inspected(run)
    kept = {key: told[key] for key in _ON_A_LINE}
    outcome = {key: value for key, value in outcome_of(run).items() if key in ("summary", "error", "reason")}
    return {
        **kept,
        "status": str(run.status),
        "started_at_ms": run.requested_at_ms,
        "completed_at_ms": run.ended_at_ms or None,
        "progress": told.get("progress"),
        "milestones": [each["name"] for each in told["milestones"]],
        "outcome": outcome,
    }


_ON_A_LINE = (
    "run_id",
    "agent_type",
    "parent",
    "parent_tool_call_id",
    "display_order",
    "display",
    "input_preview",
    "detached",
    "attempt",
    "host",
    "waits",
    "waits_for",
    "undoing",
)


def overview(view: View, live_max: int, *, served: bool = True) -> dict[str, object]:
    """What a person watches: counts, hosts, and the runs that are live, the first `live_max` of them. While nothing is served there is no
    host, and no agent is awake: those that the ledger knows of served it last."""
    live = islice((key for family in view.children.values() for key in family), live_max)
    awake = (view.agents[agent] for agent in (view.awake if served else ()))
    nowhere = {} if served else {"host": None}
    hosts = [
        {
            "host": h.host_id,
            "pid": h.pid,
            "up": h.up,
            "tenants": len(h.tenants),
            "load": h.load,
            "rss_mb": h.rss_mb,
            "node": h.node,
        }
        for h in (view.hosts.values() if served else ())
    ]
    hindrances = [(key, found) for key in view.troubles if (found := hindrance(view, key)) is not None]
    unstartable = [
        {"pool": key, "told": str(each), "cause": each.cause, "starts": each.starts, "since_at_ms": each.since_at_ms}
        for key, each in hindrances
    ]
    return {
        "epoch": view.epoch,
        "facts": view.seq,
        "runs": counts(view),
        "live": [line(view.runs[key]) | nowhere for key in live],
        "hosts": hosts,
        "unstartable": unstartable,
        "elsewhere": [{"node": node, "told": blind({node: instead})} for node, instead in view.elsewhere.items()],
        "draining": [
            {"node": node, "told": drained(node, drain), "until_ms": drain.until_ms or None}
            for node, drain in view.draining.items()
        ],
        "agents": [[a.agent_id, a.host_id, a.incarnation] for a in islice(awake, 1000)],
        "alarms": len(view.alarmed),
        "waiting": len(view.queues),
        "asks": asks_stand(view),
        "audit": audit(view),
        "code": code_counts(view, served=served),
        "kept": {name: view.limits.get(name, INFINITY) for name in ("ended_kept_ms", "ended_kept_max")},
    }


def is_in_memory(view: View, agent_id: str) -> bool:
    """Whether the view holds anything for an agent, or for what descends from it."""
    kept, asked_for = view.asleep.get(agent_id), view.asked_for.get(agent_id, ())
    own = run_of(view.runs, agent_id)
    return (
        agent_id in view.agents
        or (kept is not None and bool(kept.reported))
        or (own is not None and not own.cleared)
        or not all(view.runs[run_id].cleared for run_id in asked_for)
        or len(view.families.of(agent_id)) > 1
        or any(mail.recipient == agent_id for mail in view.mail.values())
    )


def about_agent(view: View, agent_id: str, *, served: bool) -> dict[str, object]:
    """Where an agent is, and what the ledger holds for it. While nothing is served a life that the ledger believes in was cut off, and the
    next supervisor will see to it."""
    activation, mail = view.agents.get(agent_id), [it for it in view.mail.values() if it.recipient == agent_id]
    children = view.children.get(agent_id, {})
    own = run_of(view.runs, agent_id)
    own = None if own is not None and own.cleared else own
    here = activation or Activation(agent_id)
    host = view.hosts.get(here.host_id)
    return {
        "agent": agent_id,
        "host": (here.host_id or None) if served else None,
        "pid": host.pid if host is not None else None,
        "node": host.node if host is not None else None,
        "incarnation": here.incarnation,
        "run": own.run_id if own is not None else None,
        "run_status": str(own.status) if own is not None else None,
        "is_stopping": here.stopping or here.doomed,
        "wakes_at_ms": here.alarm_at_ms or (here.wake_at_ms if here.unclean else None) or None,
        "losses": here.losses,
        "lost_by": here.cause or None,
        "mail": {state: sum(it.state is state for it in mail) for state in (MailState.PENDING, MailState.PARKED)},
        "live_runs": list(islice(children, 100)),
        **({} if served else {"was_cut_off": bool(here.host_id)}),
    }


def listed(
    in_memory: Mapping[str, Run], archived: list[Record], wanted: Wanted, limit: int, first: First
) -> list[dict[str, object]]:
    """The wanted runs by their requests, oldest or newest first: those in memory, and the `archived` rows of ended ones that left it."""
    left = [run_from(record) for record in archived if record.key not in in_memory]  # else the row is older
    told = [*left, *wanted_of(in_memory.values(), wanted)]
    return [line(run) for run in sorted(told, key=attrgetter("first_seq"), reverse=first == "newest")[:limit]]


def counts(view: View) -> dict[str, int]:
    return {str(status): view.archived[status] + view.tallied[status] for status in Status}


def ended_in(view: View) -> int:
    """How many runs have ended for good and are not cleared."""
    return sum(view.archived[status] + view.tallied[status] for status in HARD)


def audit(view: View) -> dict[str, object]:
    pending = sum(mail.state is MailState.PENDING for mail in view.mail.values())
    told = {**view.tally, str(MailState.PENDING): pending}
    return {**told, "balanced": told["enqueued"] == sum(told[key] for key in MailState)}


def parked(view: View) -> list[dict[str, object]]:
    """The mails whose handlers raised too often, for a person to look at."""
    return [
        {
            "mail_id": mail.mail_id,
            "recipient": mail.recipient,
            "run_id": mail.run_id,
            "handler": mail.handler,
            "error": mail.error,
        }
        for mail in (view.mail[key] for parked in view.parked_mail.values() for key in parked)
    ]
