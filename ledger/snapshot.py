"""The snapshot: the view as rows, and a view from rows and the facts after them.

A boot must end with the view that the last life had (invariant 8). Only records are kept. Every index is made anew from them, so an index
cannot disagree with its records after a boot.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from operator import attrgetter

from perdure.ledger.activation import Activation, Lives
from perdure.ledger.asks import note_asks
from perdure.ledger.code import Code
from perdure.ledger.codec import decode, pack, unpack
from perdure.ledger.folds import fold, fold_batch
from perdure.ledger.mail import Mail, MailState
from perdure.ledger.run import Run
from perdure.ledger.store.store import BatchRow, Boot, Record
from perdure.ledger.view import View

# `confirmed` and `begun_in` are seen, not recorded: a boot looks again.
_plain_of = attrgetter(*(each.name for each in fields(Activation) if each.name not in ("confirmed", "begun_in")))


def meta_of(view: View) -> bytes:
    return pack(
        {
            "epoch": view.epoch,
            "stopped": view.stopped,
            "seq": view.seq,
            "incarnation": view.incarnation,
            "tally": view.tally,
            "at_ms": view.at_ms,
            "limits": view.limits,
            "lives": view.lives.to_plain(),
            "closed_calls": view.closed_calls,
            "code": view.code.to_plain(),
        }
    )


def prepare_rows(view: View, run_ids: list[str]) -> None:
    """Make the rows of these runs before the snapshot is taken. A later fact about a run makes its row worthless."""
    for key in run_ids:
        if key in view.runs and key in view.dirty_runs:
            view.dirty_runs[key] = run_record(view.runs[key])


def leave_out_passers(view: View, agents: list[str]) -> None:
    """Take those of these agents out of the next snapshot that came and went since the last one: they have no row in it, and need none."""
    for key in agents:
        if not (key in view.agents or key in view.asleep or f"agents/{key}" in view.kept):
            view.dirty_agents.pop(key, None)


def rows_to_make(view: View) -> list[str]:
    return [key for key, row in view.dirty_runs.items() if row is None and key in view.runs]


def dirty_records(view: View) -> list[Record]:
    """The records that changed since the last snapshot. An empty body removes the row of a mail or an activation that is over."""
    rows = [row or run_record(view.runs[key]) for key, row in view.dirty_runs.items() if key in view.runs]
    for key in view.dirty_agents:
        activation = view.agents.get(key)
        if activation is None and key in view.asleep:
            view.kept.pop(f"agents/{key}", None)
            rows.append(_asleep(view.asleep[key]))
        else:
            rows.extend(_kept(view, "agents", key, None if activation is None else _agent_record(activation)))
    for key in view.dirty_mail:
        mail = view.mail.get(key)
        rows.extend(_kept(view, "mail", key, None if mail is None else _mail_record(mail)))
    return rows


def _kept(view: View, table: str, key: str, record: Record | None) -> Iterator[Record]:
    # A record that came and went between two snapshots, as most do, never had a row.
    if record is not None:
        view.kept[f"{table}/{key}"] = None
        yield record
    elif view.kept.pop(f"{table}/{key}", 0) is None:
        yield Record(table, key, live=False, columns=_EMPTY[table], body=b"")


_EMPTY: dict[str, tuple[str | int | None, ...]] = {"agents": ("", 0), "mail": (None, None, None)}


def _mail_record(mail: Mail) -> Record:
    columns = (mail.recipient, str(mail.state), mail.run_id)
    return Record("mail", mail.mail_id, True, columns, pack(mail.to_plain()))


def run_record(run: Run) -> Record:
    columns = (
        str(run.status), run.agent_type, run.parent, run.requested_at_ms, run.ended_at_ms or None, run.first_seq, run.last_seq,
    )  # fmt: skip
    return Record("runs", run.run_id, not run.is_settled or run.cleared, columns, pack(run.to_plain()))


def run_from(record: Record) -> Run:
    return Run.from_plain(unpack(record.body))


def _agent_record(activation: Activation) -> Record:
    live = bool(activation.host_id) or activation.unclean or activation.alarm_at_ms > 0 or activation.doomed
    live = live or activation.calls is not None
    body = pack(_plain_of(activation))
    return Record("agents", activation.agent_id, live, (activation.host_id, activation.incarnation), body)


def _asleep(kept: Activation) -> Record:
    if kept.reported:  # otherwise it was deleted, or has nothing in a storage: nothing is known of it
        return _agent_record(kept)
    return Record("agents", kept.agent_id, live=False, columns=_EMPTY["agents"], body=b"")


def activation_from(record: Record) -> Activation:
    return Activation(*unpack(record.body))


@contextmanager
def _nothing_collected() -> Iterator[None]:
    # All that is made stays, and there is no cycle in it. To search it for garbage again and again took a third of a boot.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_nothing_collected()
def restore(boot: Boot) -> View:
    """The view that these rows and facts describe."""
    view = View()
    if boot.meta is not None:
        meta = unpack(boot.meta)
        view.epoch, view.seq, view.incarnation = meta["epoch"], meta["seq"], meta["incarnation"]
        view.tally.update(meta["tally"])
        view.stopped = meta.get("stopped", False)
        view.at_ms, view.limits = meta["at_ms"], meta["limits"]
        view.code, view.lives = Code(*meta["code"]), Lives(*meta["lives"])
        view.closed_calls = meta["closed_calls"]
    view.archived.update(boot.ended)
    for record in boot.records:
        _restore_record(view, record)
    if boot.rows:
        _index(view)  # what folds read
    for row in boot.rows:
        if isinstance(row, BatchRow):
            fold_batch(view, row)
        else:
            fold(view, decode(row.kind, row.body), row.seq, row.at_ms)
    _index(view)  # made again, because the notes between these facts are in no journal
    return view


def _restore_record(view: View, record: Record) -> None:
    if not record.body:
        return
    if record.table == "runs":
        run = run_from(record)
        view.runs[run.run_id] = run
        if not record.live:
            view.archived[str(run.status)] -= 1
    elif record.table == "agents" and record.live:
        view.agents[record.key] = activation_from(record)
        view.kept[f"agents/{record.key}"] = None
    elif record.table == "mail" and record.live:
        mail = Mail.from_plain(unpack(record.body))
        view.mail[mail.mail_id] = mail
        view.kept[f"mail/{record.key}"] = None


def _index(view: View) -> None:
    runs, mail = list(view.runs.values()), sorted(view.mail.values(), key=lambda mail: mail.seq)
    put_off: list[Run] = []
    view.make_indexes()
    for run in runs:
        view.enter_run(run)
        if run.cleared:
            view.cleared[run.run_id] = None
        if run.asks:
            note_asks(view, run)
        if run.is_placed:
            view.placed[run.parent] = view.placed.get(run.parent, 0) + 1
        if run.is_live:
            view.live += 1
            if "after" in run.options:
                view.follow_sources(run)
                view.stir_joins(run)
            view.children.setdefault(run.parent, {})[run.run_id] = None
            if run.is_awaited and run.parent:
                view.awaiting[run.parent] = view.awaiting.get(run.parent, 0) + 1
            if run.paused:
                view.paused[run.run_id] = None
            if run.parked:
                view.parked[run.run_id] = None
                continue
            if run.begins_anew:
                view.begins_anew[run.run_id] = None
            if run.is_put_off:
                put_off.append(run)
                continue
            view.timers.arm(run.run_id, run.retry_at_ms)
            if not run.is_placed and not run.retry_at_ms:
                view.enqueue(run)  # in the order of the requests, which timers of the same time do not keep
    _index_agents(view)
    for each in mail:
        view.shelve(each)
        if each.is_event:
            continue
        if each.state is MailState.PENDING and each.retry_at_ms:
            view.box(each.recipient).put_off(each.mail_id, each.retry_at_ms, each.seq)
            view.timers.arm(each.recipient, each.retry_at_ms)
        elif each.state is MailState.PENDING:
            view.want(each.recipient)
    for run in put_off:  # when it is known what has come for them
        view.rest_again(run)
        view.timers.arm(run.run_id, 0)


def _index_agents(view: View) -> None:
    for activation in view.agents.values():
        view.families.add(activation.agent_id)
        view.stir(activation)
        if activation.unclean:
            view.timers.arm(activation.agent_id, activation.wake_at_ms)
        if activation.doomed:
            view.doomed[activation.agent_id] = None
        if activation.alarm_at_ms:
            view.alarmed[activation.agent_id] = None
            view.alarms.arm(activation.agent_id, activation.alarm_at_ms)
        view.asked_calls.update(dict.fromkeys(activation.calls or (), activation.agent_id))
