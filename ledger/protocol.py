"""decide(view, stimulus) → facts and notes. Nothing becomes true in any other way.

The machine of the supervisor is: stimulus → decide → facts → append (durable) → outstanding → effects. This module is its first half. It
has no state, no clock and no die, and it changes nothing: time comes in, and what it yields is put into the view by `folds.apply_fact`. A
crash at any line leaves nothing behind, because facts count only once they are appended, and notes are made again after a boot. A stimulus
that is doubled, late or from an earlier life yields no facts.

`_DECISIONS` says where each stimulus is decided. After each group of them, `placements` gives places to what waits.

An ended run that is old, or one too many (`policies.retention`), is cleared by itself if it is not needed any more. It goes only together
with its family: its child, the child's sub-agents, and the runs that they requested, whose storages are deleted with it. It stays if
anything of this holds:

- it has no hard end, or one of its family has none: what is live, and what a late result may still repair;
- mail about one of them, or for one of them, is pending or parked;
- one of them is awake, owes work, has an alarm, or asks people something: schedules, fibers and turns that go on after the run;
- a live run waits for it, or is given its result (`View.sources`);
- its child, or that of a run of its family, was woken by a call or a letter: then it is an agent of its own standing;
- the run of its parent has not ended: after a death the parent asks for it again, and must find it.

Agents that are no children of runs are never deleted here. The decision is made in one step with the tombstones (`RunCleared`), so
nothing can begin in between. A death after that leaves tombstones, and the deletion goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from perdure.ledger import asks, host_reports, placements, requests, timeouts
from perdure.ledger.facts import Fact
from perdure.ledger.ids import root_of
from perdure.ledger.notes import Note
from perdure.ledger.requests import clear
from perdure.ledger.run import Run, run_of
from perdure.ledger.stimulus import (
    Adopt,
    Alarm,
    AnswerAsk,
    AskCalls,
    Awake,
    Cancel,
    Chunk,
    Clear,
    Ended,
    ExpireRuns,
    Forget,
    Handled,
    HostLost,
    HostUp,
    Milestone,
    OpenAsk,
    Pause,
    Progress,
    PromiseUndo,
    Released,
    Request,
    Retry,
    Send,
    Stimulus,
    StopLives,
    Tell,
    Tick,
    Took,
    Undoing,
    Unhosted,
    Unstarted,
    Up,
    Waiting,
    WithdrawAsk,
)
from perdure.ledger.view import View
from perdure.policies import Limits

FAMILY_MAX: Final = 1_000
"""Runs of one family that are cleared at once by themselves. A larger one is for `perdure clear`."""


def decide(view: View, stimulus: Stimulus, at_ms: int, limits: Limits) -> Iterator[Fact | Note]:
    """What a stimulus brings about. Reads the view and changes nothing: `folds.apply_fact` puts each fact and note into the view before it
    takes the next one, so that later decisions see earlier ones.

    Raises:
        BadRequest, WorldError: a request that is refused, before its first fact.
    """
    return _DECISIONS[type(stimulus)](view, stimulus, at_ms, limits)


_DECISIONS: dict[type[Stimulus], Callable[[View, Any, int, Limits], Iterator[Fact | Note]]] = {
    Request: lambda view, said, _at_ms, limits: requests.request(view, said, limits),
    Cancel: lambda view, said, _at_ms, _limits: requests.cancel(view, said),
    Clear: lambda view, said, _at_ms, _limits: requests.clear(view, said),
    Tell: lambda view, said, _at_ms, _limits: requests.tell(view, said),
    Send: lambda view, said, _at_ms, limits: requests.send(view, said, limits),
    Pause: lambda view, said, _at_ms, limits: requests.pause(view, said, limits),
    OpenAsk: lambda view, said, _at_ms, limits: asks.open_ask(
        view, host_reports.at_work(view, said.run_id, said.incarnation), said, limits
    ),
    WithdrawAsk: lambda view, said, _at_ms, _limits: asks.withdraw_ask(
        host_reports.at_work(view, said.run_id, said.incarnation), said
    ),
    AnswerAsk: lambda view, said, at_ms, _limits: asks.answer_ask(view, said, at_ms),
    Forget: lambda view, said, _at_ms, _limits: requests.forget(view, said),
    StopLives: lambda view, said, _at_ms, _limits: requests.stop_lives(view, said),
    ExpireRuns: lambda view, said, _at_ms, _limits: _expire(view, said),
    Retry: lambda view, said, _at_ms, _limits: requests.retry(view, said),
    Up: lambda view, said, _at_ms, _limits: host_reports.up(view, said),
    Progress: lambda view, said, _at_ms, _limits: host_reports.progress(view, said),
    Milestone: lambda view, said, _at_ms, _limits: host_reports.milestone(view, said),
    Chunk: lambda view, said, _at_ms, _limits: host_reports.chunk(view, said),
    Ended: lambda view, said, _at_ms, limits: host_reports.ended(view, said, limits),
    Undoing: lambda view, said, _at_ms, _limits: host_reports.undoing(view, said),
    PromiseUndo: lambda view, said, _at_ms, _limits: host_reports.promise_undo(view, said),
    Unstarted: host_reports.unstarted,
    Waiting: host_reports.waiting,
    Took: lambda view, said, _at_ms, _limits: host_reports.took(view, said),
    Released: host_reports.released,
    Awake: lambda view, said, _at_ms, _limits: host_reports.awake(view, said),
    Alarm: lambda view, said, _at_ms, _limits: host_reports.alarm(view, said),
    AskCalls: lambda view, said, _at_ms, _limits: host_reports.ask_calls(view, said),
    Handled: host_reports.handled,
    HostUp: host_reports.host_up,
    HostLost: host_reports.host_lost,
    Unhosted: lambda view, said, _at_ms, limits: placements.unhosted(view, said, limits),
    Adopt: lambda view, said, _at_ms, _limits: requests.adopt(view, said),
    Tick: timeouts.tick,
}


def _expire(view: View, asked: ExpireRuns) -> Iterator[Fact]:
    runs = [run for run_id in asked.run_ids if (run := view.runs.get(run_id)) is not None]
    spoken_of = {mail.run_id for mail in view.mail.values()} if runs else set()
    free = [run.run_id for run in runs if not _is_needed(view, run, spoken_of, set(asked.called))]
    if free:
        yield from clear(view, Clear(free))


def is_awaited(view: View, run: Run) -> bool:
    """Whether the run of its parent has not ended, and may ask for it again."""
    asker = run_of(view.runs, root_of(run.parent))
    return asker is not None and not asker.is_settled


def _is_needed(view: View, run: Run, spoken_of: Collection[str], called: Collection[str]) -> bool:
    """Whether anybody needs this run, or one of its family. What is live, owes something, or has mail is in memory."""
    if is_awaited(view, run):
        return True
    due, count = [run], 0
    while due:
        each = due.pop()
        count += 1
        family = view.families.of(each.child)
        over = each.is_hard and each.is_settled and not each.cleared and each.run_id not in spoken_of
        over = over and each.run_id not in view.sources
        if count > FAMILY_MAX or not over or any(_is_busy(view, agent, called) for agent in family):
            return True
        due += [view.runs[run_id] for agent in family for run_id in view.asked_for.get(agent, ())]
    return False


def _is_busy(view: View, agent: str, called: Collection[str]) -> bool:
    kept = view.asleep.get(agent)
    is_called = agent in called or (kept is not None and kept.called)
    return is_called or any(agent in index for index in (view.agents, view.mailbox, view.wanted, view.parked_mail))
