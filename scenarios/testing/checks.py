"""The invariants of the design, checked on the durable facts, the view, the hosts and the storages.

`Ledger` is a store that folds every fact again when it becomes durable: the *shadow*. The view of a supervisor is compared with it.
`Laboratory.look` checks while a simulation runs, and `Laboratory.verify` at the end.

| invariant (design §8) | where |
|---|---|
| 1 a hard status never changes | `Ledger.append` |
| 2 one live attempt, one live incarnation | `strangers`, `Ledger.append` |
| 3 no effect before its commit | `Wiretap` |
| 5 handler effects exactly once | `unlike_the_inboxes` |
| 6 every run reaches an end | `unfinished` |
| 7 frame numbers without holes | `Ledger.append` |
| 8 the fold of the facts is the kept view | `unlike_the_shadow`, `unlike_the_snapshot` |
| 9 stale reports change nothing | `Ledger.append` |
| 10 nothing cleared comes back | `Ledger.append`, `left_behind` |
| what was let out is in the bucket | `bucket_ledger` |

Invariant 4 is about tools of chat agents. Their own story checks it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from functools import partial
from pathlib import Path

from perdure.actors import CallbackRow, Host, Supervisor
from perdure.actors.link.messages import Deliver, Message, RunEnded, RunsEnded, Start, Starts, Wake
from perdure.actors.link.wire import SupervisorFrame, decode_all
from perdure.ledger import (
    ALARM_OF_RUN,
    EVENT,
    Activation,
    CarriedDisk,
    Fact,
    FactRow,
    Mail,
    MailState,
    Patch,
    Payload,
    Record,
    Row,
    Run,
    Slot,
    Store,
    View,
    agent_id,
    ancestors,
    audit,
    counts,
    decode,
    expand_rows,
    fold,
    name_of,
    next_look,
    pack,
    parent_of,
    restore,
    source_of,
    unpack,
)
from perdure.ledger.storage.agent_storages import AgentStorages, Disk, MemoryDisk, Storage
from perdure.ledger.storage.records import QUEUED, SCHEDULE
from perdure.ledger.store.memory_store import MemoryStore
from perdure.policies import CallbackStatus, JoinStanding, Limits, judge_condition

HARD_ENDS = ("RunSucceeded", "RunErrored", "RunAborted")
VOLATILE = {"begun_in", "called", "confirmed", "wake_at_ms", "reported"}
COMPARED: dict[type, list[str]] = {
    kind: [each.name for each in fields(kind) if not (kind is Activation and each.name in VOLATILE)]
    for kind in (Run, Mail, Activation)
}
"""The fields of each kind of record that follow from facts."""
LAST_LIFE = 1 << 60


class Violation(AssertionError):
    """An invariant does not hold."""


class Ledger(MemoryStore):
    """A store in memory that folds each fact again, and notes facts that may not become durable."""

    def __init__(self, *, carries_storages: bool = False) -> None:
        super().__init__(carries_storages=carries_storages)
        self.shadow = View()
        self.facts_count = 0
        self.log: list[FactRow] = []
        self.violations: list[str] = []
        self.cleared: dict[tuple[str, str], None] = {}
        self._hard: dict[str, str] = {}

    def append(self, rows: Sequence[Row], payloads: list[Payload], patches: Sequence[Patch] = ()) -> None:
        super().append(rows, payloads, patches)
        facts = expand_rows(rows)
        self.log += facts
        for row in facts:
            self._look(row)
        for index in (
            self.shadow.dirty_runs,
            self.shadow.dirty_agents,
            self.shadow.dirty_mail,
            self.shadow.touched,
            self.shadow.due_joins,
        ):
            index.clear()
        self.facts_count += len(facts)

    def checkpoint(self, meta: bytes, upto_seq: int, records: list[Record], forgotten: list[str]) -> None:
        super().checkpoint(meta, upto_seq, records, forgotten)
        for run_id in forgotten:
            run = self.shadow.runs.get(run_id)
            if run is not None and not run.cleared:
                self.violations.append(f"run {run_id} was deleted, but never cleared")
            for key in run.mail_ids if run is not None else ():
                self.shadow.mail.pop(key, None)
            self.shadow.remove_run(run_id)
            self.shadow.remove_agent(run_id)  # for a child is named, too, and forgotten with its run
            self.shadow.asleep.pop(run_id, None)
            self._hard.pop(run_id, None)

    def _look(self, row: FactRow) -> None:
        fact = decode(row.kind, row.body)
        run = self.shadow.runs.get(row.subject)
        if row.kind in HARD_ENDS and self._hard.setdefault(row.subject, row.kind) != row.kind:
            self.violations.append(f"run {row.subject} ended twice: {self._hard[row.subject]}, then {row.kind}")
        if row.kind == "RunRetried":  # the one way back from a hard end: a person asked for it
            self._hard.pop(row.subject, None)
        if run is not None and row.kind == "RunCleared":
            self.cleared[run.run_id, run.agent_type] = None
        if run is not None and run.cleared and row.kind not in ("RunRequested", "AgentReleased"):
            self.violations.append(f"run {row.subject} was cleared, and then came {row.kind}")
        if row.kind == "AttemptStarted" and run is not None:
            self._second_life(run, fact, row)
            if run.waits_for_others:
                self.violations.append(f"run {row.subject} began before what it waits for was there")
        if row.kind == "JoinMet" and (run is None or run.joined is not None):
            self.violations.append(f"what run {row.subject} waited for was there twice")
        activation = self.shadow.agents.get(row.subject)
        if row.kind == "AgentActivated" and activation is not None and activation.host_id:
            self.violations.append(f"agent {row.subject} was activated while it lives on host {activation.host_id}")
        expected = run.frames if run is not None else 0
        frame = fold(self.shadow, fact, row.seq, row.at_ms)
        if frame != row.frame or frame not in (None, expected):
            self.violations.append(f"fact {row.seq} of run {row.subject} is frame {row.frame}; {expected} was next")

    def _second_life(self, run: Run, fact: Fact, row: FactRow) -> None:
        life = self.shadow.agents.get(run.child)
        goes_on = run.wait is not None and not run.is_placed  # in a life that has stayed awake for other work
        if goes_on and life is not None and (life.incarnation, life.host_id) == fact[2:4]:
            return
        if run.is_placed or (life is not None and life.host_id):
            where = run.host_id or (life.host_id if life is not None else "")
            self.violations.append(
                f"fact {row.seq}: another attempt at run {run.run_id} while one lives on host {where}"
            )


# -------------------------------------------------------------------- the view against its facts


def unlike_the_shadow(view: View, shadow: View) -> Iterator[str]:
    """Differences between a supervisor's records and the fold of the durable facts. All its facts must be durable."""
    if view.seq != shadow.seq or view.tally != shadow.tally or view.incarnation != shadow.incarnation:
        kept, folded = ((each.seq, each.tally, each.incarnation) for each in (view, shadow))
        yield f"seq, tally or incarnation: {kept} kept, {folded} folded"
    if counts(view) != counts(shadow):
        yield f"the runs are counted as {counts(view)}, and fold to {counts(shadow)}"
    for key, run in view.runs.items():
        if not _is_leaving(view, shadow, key):
            yield from _differences(f"run {key}", run, shadow.runs.get(key))
    for key, mail in view.mail.items():
        if not _is_leaving(view, shadow, mail.run_id):
            yield from _differences(f"mail {key}", mail, shadow.mail.get(key))
    for key in shadow.mail.keys() - view.mail.keys():
        yield f"mail {key} is durable ({shadow.mail[key].state}) and not kept"
    for key in shadow.agents.keys() | view.agents.keys():
        mine, theirs = view.agents.get(key), shadow.agents.get(key)
        if (_owes(mine) or _owes(theirs)) and not _is_leaving(view, shadow, name_of(key)):
            yield from _differences(f"agent {key}", mine, theirs)
            if mine is None or theirs is None or (theirs.reported is None and parent_of(key)):
                continue  # of a sub-agent that has slept, the snapshot may know more than the fold
            if mine.reported not in (None, theirs.reported or 0):
                yield f"agent {key}: it had reported {mine.reported}, and that folds to {theirs.reported}"


def _is_leaving(view: View, shadow: View, run_id: str) -> bool:
    # On disk it is deleted, and in memory not yet.
    return run_id in view.runs and view.runs[run_id].cleared and run_id not in shadow.runs


def _owes(activation: Activation | None) -> bool:
    return activation is not None and bool(
        activation.host_id or activation.unclean or activation.alarm_at_ms or activation.calls or activation.doomed
    )


def _differences(what: str, kept: object, folded: object) -> Iterator[str]:
    if kept is None or folded is None:
        yield f"{what} is {'not kept' if kept is None else 'kept, but not durable'}"
        return
    for name in COMPARED[type(kept)]:
        mine, theirs = getattr(kept, name), getattr(folded, name)
        if mine != theirs and pack(mine) != pack(theirs):
            yield f"{what}: {name} is kept as {mine!r}, and folds to {theirs!r}"


def unlike_the_snapshot(store: Store, shadow: View) -> Iterator[str]:
    for complaint in unlike_the_shadow(restore(store.boot()), shadow):
        yield f"after a boot: {complaint}"


def strangers(hosts: Iterable[Host], shadow: View) -> Iterator[str]:
    """Forbidden lives of agents: two at once, or one that the ledger never began."""
    seen: dict[str, str] = {}
    for host in hosts:
        for tenant in host.tenants.values():
            if tenant.is_leaving:
                continue
            if tenant.incarnation > shadow.incarnation:
                yield f"agent {tenant.agent_id} lives in incarnation {tenant.incarnation}; the ledger knows {shadow.incarnation}"
            if tenant.agent_id in seen:
                yield f"agent {tenant.agent_id} lives on {seen[tenant.agent_id]} and on {host.host_id}"
            seen[tenant.agent_id] = host.host_id


# -------------------------------------------------------------------- the end


def endless(view: View, limits: Limits) -> set[str]:
    """The runs that wait for people or events without a limit, where no alarm is set of what might bring these."""
    waiting = [run for run in view.runs.values() if run.is_put_off or (run.waits_for_others and not run.host_id)]
    if not (waiting and math.isinf(view.alarms.next_at_ms)):
        return set()
    return {run.run_id for run in waiting if not run.cleared and math.isinf(next_look(view, run, limits))}


def unfinished(view: View, endless: Container[str] = ()) -> Iterator[str]:
    for run in view.runs.values():
        if run.run_id in endless:
            continue
        if run.is_live or run.is_placed or run.cleared:
            yield f"run {run.run_id} is {run.status}, on host {run.host_id!r}, cleared {run.cleared}, attempt {run.attempt}"
    for mail in view.mail.values():
        if mail.state is MailState.PENDING:
            yield f"mail {mail.mail_id} to {mail.recipient} is pending"
    for activation in view.agents.values():
        is_asleep = not (activation.host_id or activation.unclean)
        if is_asleep and (activation.alarm_at_ms > view.at_ms or (activation.calls and not activation.alarm_at_ms)):
            continue  # it sleeps until then, or until people have answered
        yield f"agent {activation.agent_id} is on host {activation.host_id!r}, unclean {activation.unclean}"


def never_handled(view: View) -> Iterator[str]:
    for parked in view.parked_mail.values():
        for mail in (view.mail[key] for key in parked):
            run = f" of run {mail.run_id}" if mail.run_id else ""
            raised = f"{mail.recipient}.{mail.handler} has failed with it {mail.attempts} times: {mail.error}"
            yield f"mail {mail.mail_id}{run} is parked, for {raised}. Where that is meant, say `parked=True`"


def never_done(disk: Disk, agents: Iterable[str]) -> Iterator[str]:
    with closing(AgentStorages(disk)) as agent_storages:
        for agent in filter(agent_storages.exists, agents):
            storage = agent_storages.open(agent, LAST_LIFE)
            kept = [CallbackRow.load(body) for kind in (SCHEDULE, QUEUED) for body in storage.documents(kind).values()]
            for row in (row for row in kept if row.status is CallbackStatus.PARKED):
                raised = f"{agent}.{row.callback} has failed with it {row.attempt} times: {row.error}"
                yield f"the {row.kind} callback {row.id} is parked, for {raised}. Where that is meant, say `parked=True`"


def unbalanced(view: View) -> Iterator[str]:
    told = audit(view)
    if not told["balanced"]:
        yield f"the audit does not balance: {told}"


def unlike_the_inboxes(disk: Disk, view: View, agents: Iterable[str], *, diaries: bool = False) -> Iterator[str]:
    """Differences between the mail that agents' storages have handled and the mail that the ledger has delivered.

    A handler's effects are in the transaction that puts its mail into the inbox. With `diaries` each handler also writes its `delivery_id`
    into a table `told`, which is compared too.
    """
    with closing(AgentStorages(disk)) as agent_storages:
        for agent in agents:
            storage = agent_storages.open(agent, LAST_LIFE) if agent_storages.exists(agent) else None
            accounts = [_handled(disk, agent, storage)]
            if diaries:
                accounts.append(_diary(storage) if storage is not None else Counter())
            for told in accounts:
                yield from _unlike_the_account(view, agent, told)


def _handled(disk: Disk, agent: str, storage: Storage | None) -> Counter[str]:
    # A deleted mail that comes back after a crash has its old number.
    forgotten = disk.forgotten.get(agent, set()) if isinstance(disk, MemoryDisk | LedgerDisk) else set()
    kept = set(storage.inbox().items()) if storage is not None else set()
    return Counter(mail_id for mail_id, _ in forgotten | kept)


def _diary(storage: Storage) -> Counter[str]:
    tables = storage.sql("SELECT table_name FROM duckdb_tables() WHERE database_name = current_database()")
    return Counter(key for (key,) in storage.sql("SELECT delivery_id FROM told")) if ("told",) in tables else Counter()


def _unlike_the_account(view: View, agent: str, told: Counter[str]) -> Iterator[str]:
    for key, times in told.items():
        if times != 1:
            yield f"mail {key} took effect {times} times in {agent}"
    for run in view.runs.values():
        if run.parent == agent:
            yield from _unlike_the_slots(run, told)


def _unlike_the_slots(run: Run, told: Counter[str]) -> Iterator[str]:
    for slot, state in run.slots.items():
        written = told[run.mail_id(slot)]
        if state is MailState.DELIVERED and not written and slot != Slot.START:
            yield f"mail {slot} of run {run.run_id} counts as delivered, and its handler left no trace in {run.parent}"
        if written and state in (MailState.PENDING, MailState.PARKED):
            yield f"mail {slot} of run {run.run_id} took effect, and counts as {state}"
    if run.wants_mail and run.is_hard and Slot.FINISH not in run.slots:
        yield f"the end of run {run.run_id} was never told to its parent"


def left_behind(disk: Disk, view: View, run_ids: Iterable[tuple[str, str]]) -> Iterator[str]:
    for run_id, agent_type in run_ids:
        if run_id not in view.runs and disk.has(agent_id(agent_type, run_id)):
            yield f"run {run_id} was cleared, and its child's storage is still there"


def demand(*complaints: Iterable[str]) -> None:
    found = [each for source in complaints for each in source]
    if found:
        raise Violation("; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else ""))  # noqa: PLR2004


class LedgerDisk(CarriedDisk):
    """The storages that a ledger carries, to be looked at.

    Attributes:
        forgotten: as that of a `MemoryDisk`.
    """

    def __init__(self, directory: Path, ledger: MemoryStore) -> None:
        super().__init__(directory)
        self._ledger = ledger
        self.forgotten: dict[str, set[tuple[str, int]]] = {}

    def of_host(self, host_id: str) -> CarriedDisk:
        made = CarriedDisk(self.directory.with_name(host_id))
        made.witness = self.witness  # type: ignore[method-assign]
        return made

    def witness(self, agent_id: str, forgotten: dict[str, int]) -> None:
        self.forgotten.setdefault(agent_id, set()).update(forgotten.items())

    def has(self, agent_id: str) -> bool:
        return self._ledger.may_have_storage(agent_id)

    def _hold(self, agent_id: str, holder: object) -> None:
        self.hold(agent_id, self._ledger.storage(agent_id))
        super()._hold(agent_id, holder)


# For invariant 3: no effect before its commit.
class Wiretap:
    def __init__(self, supervisor: Supervisor, ledger: Ledger) -> None:
        self._supervisor, self._ledger = supervisor, ledger
        self.serve = supervisor.serve

    async def exchange(self, frame: bytes) -> bytes:
        answer = await self._supervisor.exchange(frame)
        for said in decode_all(SupervisorFrame(*unpack(answer)).messages):
            self._ledger.violations.extend(premature(said, self._ledger.shadow))
        return answer


def premature(message: Message, shadow: View) -> Iterator[str]:
    match message:
        case Start(_, incarnation, run_id) if incarnation > shadow.incarnation:
            yield f"run {run_id} was started in incarnation {incarnation} before that was durable ({shadow.incarnation})"
        case Starts() if max(message.incarnations) > shadow.incarnation:
            yield f"{len(message.run_ids)} runs were started together before that was durable ({shadow.incarnation})"
        case RunsEnded():
            for run_id, outcome in message.outcomes():
                yield from premature(RunEnded(run_id, outcome), shadow)
        case Wake(agent, incarnation) if incarnation > shadow.incarnation:
            yield f"agent {agent} was woken in incarnation {incarnation} before that was durable"
        case RunEnded(run_id, outcome):
            run = shadow.runs.get(run_id)
            of_an_earlier_run = outcome.get("error") == "the run was cleared"  # and it was asked for anew since
            if (
                run is not None
                and not run.has_ended
                and not (run.reattached_at_ms or run.retries)
                and not of_an_earlier_run
            ):
                yield f"the end {outcome['status']} of run {run_id} was told before that was durable"
        case Deliver(mails=mails):
            for mail_id, slot, _, about, _ in mails:
                run = shadow.runs.get(about.get("run_id", ""))
                if run is not None and not _was_posted(run, mail_id, slot, shadow):
                    yield f"mail {mail_id} was delivered before it was durable"


def _was_posted(run: Run, mail_id: str, slot: str, shadow: View) -> bool:
    # A frame may be said again when the event was taken, or withdrawn with the run.
    if slot.startswith(EVENT):
        return mail_id in shadow.mail or mail_id in (run.receipts or ()) or run.is_hard
    return slot in run.slots or bool(run.retries)


def out_of_step(view: View) -> Iterator[str]:
    """Indexes that disagree with their records."""
    children: dict[str, set[str]] = {}
    placed: Counter[str] = Counter()
    awaiting: Counter[str] = Counter()
    mailbox: dict[str, set[str]] = {}
    events: dict[str, set[str]] = {}
    for run in view.runs.values():
        placed[run.parent] += run.is_placed
        if run.is_live:
            children.setdefault(run.parent, set()).add(run.run_id)
            awaiting[run.parent] += run.is_awaited and run.parent != ""
    for mail in view.mail.values():
        if mail.state is MailState.PENDING:
            index, key = (events, mail.run_id) if mail.is_event else (mailbox, mail.recipient)
            index.setdefault(key, set()).add(mail.mail_id)
    yield from _unequal("children", {key: set(family) for key, family in view.children.items()}, children)
    yield from _unequal("placed", view.placed, {key: count for key, count in placed.items() if count})
    yield from _unequal("awaiting", view.awaiting, {key: count for key, count in awaiting.items() if count})
    yield from _unequal("mailbox", {key: set(box) for key, box in view.mailbox.items()}, mailbox)
    yield from _unequal("events", {key: set(box) for key, box in view.events.items()}, events)
    asking = dict.fromkeys(run.run_id for run in view.runs.values() if run.open_asks)
    yield from _unequal("asks", view.asks, asking)
    yield from _holdings(view)
    yield from _queues(view)
    yield from _loads(view)


def _unequal(name: str, kept: Mapping[str, object], made: Mapping[str, object]) -> Iterator[str]:
    for key in kept.keys() | made.keys():
        if kept.get(key) != made.get(key):
            yield f"index {name}[{key!r}] is {kept.get(key)!r}; the records say {made.get(key)!r}"


def _queues(view: View) -> Iterator[str]:
    waiting = dict.fromkeys([*view.queues, *(run_id for held in view.held.values() for run_id in held)])
    for run_id in waiting:
        run = view.runs.get(run_id)
        if run is None or not run.is_live or run.is_placed or run.waits_for_others:
            yield f"run {run_id} stands in a queue, and waits for no place"
    for run in view.runs.values():
        seen = run.run_id in waiting or run.run_id in view.timers.armed or run.run_id in view.waiting
        seen = seen or run.waits_for_others or run.parked != ""
        if run.is_live and not run.is_placed and not run.teardown and not seen:
            yield f"run {run.run_id} waits for a place, and is in no queue and no timer"
    yield from _waits(view, waiting)


def _waits(view: View, queued: Container[str]) -> Iterator[str]:
    for run in view.runs.values():
        is_put_off = run.is_live and run.is_put_off and run.run_id not in queued
        if is_put_off != (run.run_id in view.waiting) and (run.run_id in view.waiting or run.wait is not None):
            yield f"run {run.run_id} stands among the waiting: {run.run_id in view.waiting}; the record says {is_put_off}"
        if run.run_id not in view.waiting or run.wait is None or run.paused:
            continue
        if any(view.mail[key].slot.removeprefix(EVENT) in run.wait.events for key in view.events.get(run.run_id, ())):
            yield f"run {run.run_id} waits for an event that has come"
        armed = view.alarms.armed if run.wait.by_wall else view.timers.armed
        key = ALARM_OF_RUN + run.run_id if run.wait.by_wall else run.run_id
        if not (math.isinf(run.wait.until_ms) or key in armed):
            yield f"run {run.run_id} waits for a time, and nothing is armed"


def _holdings(view: View) -> Iterator[str]:
    runs, agents, mail = view.runs.values(), view.agents.values(), view.mail.values()
    awake = {each.agent_id for each in agents if each.host_id or each.unclean}
    alarmed = {each.agent_id for each in agents if each.alarm_at_ms}
    parked = {each.mail_id for each in mail if each.state is MailState.PARKED}
    families = {
        each for each in (*view.agents, *view.mailbox, *view.parked_mail, *view.asked_for, *view.wanted) if ">" in each
    }
    made: dict[str, tuple[object, object]] = {
        "tallied": (+view.tallied, Counter(run.status for run in runs if not run.cleared)),
        "live": (view.live, sum(run.is_live for run in runs)),
        "settled": (
            set(view.settled),
            {run.run_id for run in runs if run.is_settled and not run.cleared and run.run_id not in view.sources},
        ),
        "asked_for": (
            {(parent, key) for parent, keys in view.asked_for.items() for key in keys},
            {(run.parent, run.run_id) for run in runs},
        ),
        "awake": (set(view.awake), awake),
        "alarmed": (set(view.alarmed), alarmed),
        "asked_calls": (view.asked_calls, {key: each.agent_id for each in agents for key in each.calls or ()}),
        "parked_mail": ({key for keys in view.parked_mail.values() for key in keys}, parked),
        "families": (
            {(above, each) for each in families for above in ancestors(each) if each in view.families.of(above)},
            {(above, each) for each in families for above in ancestors(each)},
        ),
        "sources": (
            {(source, key) for source, keys in view.sources.items() for key in keys},
            {(source, run.run_id) for run in runs if run.is_live for source in run.sources},
        ),
        "wakes": (set(view.wakes), {agent for agent, line in view.wanted.items() if line is not None}),
    }
    yield from (
        f"index {name} is {kept}; the records say {said}" for name, (kept, said) in made.items() if kept != said
    )
    for run in runs:
        condition = run.condition if run.waits_for_others and run.run_id not in view.due_joins else None
        verdict = None if condition is None else judge_condition(condition, partial(source_of, view))
        if verdict is not None and verdict.standing is not JoinStanding.OPEN:
            yield f"run {run.run_id} waits on, and its condition is {verdict.standing.value}: {verdict.met}, {verdict.why}"
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
        load = sum(not view.awaiting.get(agent) for agent in host.tenants) - host.resting
        if load != host.load:
            yield f"host {host.host_id} has load {host.load}; its tenants make {load}"
    for run in view.runs.values():
        lives = view.agents.get(run.child, Activation(run.child)).host_id
        if run.is_placed and lives != run.host_id:
            yield f"run {run.run_id} is on host {run.host_id}, and its child on {lives!r}"
