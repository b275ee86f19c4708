"""Which of many stimuli are decided as one batch (`store.batches`), and what goes one by one.

A batch is made only where each member, decided by itself in its turn, would come to the very fact for which it stands, and where none
bears on another. So a member with a limit, a hook, mail, a loss, a second attempt, children of its own, a doubled id, or anything else that
is not as with the others is no member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Final

from perdure.ledger.activation import HostView
from perdure.ledger.facts import Fact
from perdure.ledger.host_reports import ended
from perdure.ledger.ids import name_of
from perdure.ledger.indexes import LineKey
from perdure.ledger.run import Run
from perdure.ledger.stimulus import Ended, Request
from perdure.ledger.store.batches import BATCH_MIN, AttemptsStarted, RunsRequested, RunsSucceeded
from perdure.ledger.view import View
from perdure.policies import Limits, shares

_ODD_OPTIONS: Final = frozenset({"after", "limit", "on_limit", "start_hook"})


def is_plain_request(asked: Request, limits: Limits) -> bool:
    return len(asked.input) <= limits.inline_bytes_max and _ODD_OPTIONS.isdisjoint(asked.options)


def are_alike(plain: Request, other: Request, limits: Limits) -> bool:
    # All fields but the id, the digest and the input are those of a plain one.
    return plain[1:4] == other[1:4] and plain[6:] == other[6:] and len(other.input) <= limits.inline_bytes_max


def is_plain_end(said: Ended, limits: Limits) -> bool:
    _, _, output, _, error, released, _, sequence = said
    return error is None and released and not sequence and (output is None or len(output) <= limits.inline_bytes_max)


def request_together(view: View, asked: Sequence[Request], limits: Limits) -> Iterator[RunsRequested]:
    """The batch that these plain and alike requests are. Nothing if one of them has to be decided by itself."""
    first = asked[0]
    owner, runs = view.runs.get(name_of(first.parent)), view.runs
    ids = [each.run_id for each in asked]
    if (owner is not None and owner.cleared) or view.doomed_by(first.parent):
        return
    if len(set(ids)) < len(ids) or any(run_id in runs for run_id in ids):
        return
    if len(view.queues) + len(ids) > limits.waiting_max:
        return
    yield RunsRequested(
        ids,
        [each.digest for each in asked],
        [each.input for each in asked],
        first.agent_type,
        first.parent,
        first.parent_run,
        first.options,
        first.life,
    )


def end_together(view: View, said: Iterable[Ended], limits: Limits) -> Iterator[Fact | RunsSucceeded]:
    """What these plain ends bring about, in their order: batches of those that are alike, and the others one by one."""
    batch: dict[str, Ended] = {}
    first: Run | None = None
    for each in said:
        run = _ends_plainly(view, each)
        if batch and (run is None or first is None or each.run_id in batch or not _end_alike(first, run)):
            yield from _ended(view, batch, limits)
            batch = {}
            run = _ends_plainly(view, each)  # again, because the facts of that batch are folded by now
        if run is None:
            yield from ended(view, each, limits)
            continue
        first = run if not batch else first
        batch[each.run_id] = each
    yield from _ended(view, batch, limits)


def _ended(view: View, batch: dict[str, Ended], limits: Limits) -> Iterator[Fact | RunsSucceeded]:
    said = list(batch.values())
    if len(said) < BATCH_MIN:
        for each in said:
            yield from ended(view, each, limits)
        return
    run = view.runs[said[0].run_id]
    outputs, summaries = [each.output for each in said], [each.summary for each in said]
    yield RunsSucceeded(list(batch), outputs, summaries, run.attempt, run.frames)


def _end_alike(first: Run, run: Run) -> bool:
    if run.parent != first.parent or run.attempt != first.attempt or run.frames != first.frames:
        return False
    return run.options is first.options or run.options == first.options


def _ends_plainly(view: View, said: Ended) -> Run | None:
    """The run, if this end changes nothing but the run and the life of its child."""
    run = view.runs.get(said.run_id)
    if (
        run is None
        or not run.is_live
        or run.slots
        or run.teardown
        or run.cleared
        or run.retries
        or run.parked
        or run.paused
        or run.undo
    ):
        return None
    if said.run_id in view.events or run.asks or "after" in run.options or run.run_id in view.sources:
        return None
    agent, life = run.child, view.agents.get(run.child)
    if life is None or life.incarnation != said.incarnation or not life.host_id or life.host_id != run.host_id:
        return None
    if life.owes or life.alarm_at_ms or life.calls or ">" in agent or agent in view.mailbox or agent in view.wanted:
        return None
    bears_on_others = view.doomed or agent in view.children or run.parent in view.held or agent in view.awaiting
    return None if bears_on_others else run


def seat_together(
    view: View, line: LineKey, hosts: list[HostView], blamed: int, limits: Limits
) -> Iterator[AttemptsStarted]:
    """First attempts at the runs that are next in this line, as many as may go without another look at each."""
    if line.exclusive or blamed <= 0 or view.blockers or limits.attempts_max < 1:
        return
    demand = view.queues.length(line)
    places = shares(hosts, demand, limits)
    plain = takewhile(lambda run: _begins_plainly(view, run), map(view.runs.__getitem__, view.queues.all_of(line)))
    ids = [run.run_id for run in islice(plain, sum(count for _, count in places))]
    place = 0
    for host, count in places:
        group = ids[place : place + count]
        place += count
        if len(group) >= BATCH_MIN:
            yield AttemptsStarted(group, view.incarnation + 1, host.host_id)


def _begins_plainly(view: View, run: Run) -> bool:
    agent = run.child
    if run.attempt or run.losses or run.retried_at_ms or "limit" in run.options or "apart" in run.options:
        return False
    if agent in view.agents or agent in view.asleep or agent in view.wanted or agent in view.mailbox:
        return False
    return ">" not in agent and agent not in view.awaiting
