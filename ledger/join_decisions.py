"""Decisions about runs that wait for others (`policies.joins`): they may begin, or never can.

The condition is part of the request, so nobody waits for it: neither a parent nor a host. A fact about a run that others need makes these
due (`View.due_joins`), and after each group of stimuli what is due is looked at, before places are given. So what decides about a run is
committed together with what became of the run. A boot looks at all of them. What a source was when it decided does not change later: a
completed run stays so, and a milestone was reached.

A run needs its sources until it has ended: each of its attempts is given their results. Meanwhile memory keeps them, and they are not
cleared by themselves. If a person clears one, a run that waits for it, or that has to begin once more, fails.

With `losers="cancel"` those sources of which nothing was needed are cancelled as soon as it is decided. A run with `first` has no child: it
completes in the same step, with the ids of the first so many of its sources, by the order of their ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from perdure.ledger.facts import Fact, JoinMet, RunErrored, RunSucceeded
from perdure.ledger.notes import Note, join_looked
from perdure.ledger.requests import abort, abort_awaited
from perdure.ledger.run import Run
from perdure.ledger.status import Status
from perdure.ledger.values import pack_value
from perdure.ledger.view import View
from perdure.policies import (
    JoinStanding,
    JoinVerdict,
    Limits,
    Source,
    condition_in_words,
    judge_condition,
    leaves_of,
    runs_of,
)

_SHOWN_CHARS = 200


def decide_joins(view: View, limits: Limits) -> Iterator[Fact | Note]:
    while view.due_joins:
        run_id = next(iter(view.due_joins))
        yield join_looked(run_id)
        run = view.runs.get(run_id)
        if run is None or not run.is_live or run.is_placed:
            continue
        if run.joined is None:
            yield from _decide(view, run, limits)
        elif gone := [source for source in run.sources if source_of(view, source) is None]:
            why = f"run {gone[0]}, whose result it is given, was cleared, so it cannot begin once more"
            yield from _fail(view, run, why)


def _decide(view: View, run: Run, limits: Limits) -> Iterator[Fact]:
    condition = run.condition
    assert condition is not None, "a run that waits for others has a condition"
    verdict = judge_condition(condition, partial(source_of, view))
    if verdict.standing is JoinStanding.OPEN:
        return
    if verdict.standing is JoinStanding.NEVER:
        ends = "can never begin" if "first" not in run.options else "can never complete"
        why = f"it {ends}. It waited for {condition_in_words(condition)}; but {verdict.why}"
        yield from _fail(view, run, why[: limits.error_chars_max])
        yield from _cancel_losers(view, run, verdict, f"run {run.run_id}, which waited for it, {ends}")
        return
    first = run.options.get("first")
    if first is not None:
        verdict = verdict._replace(met=_first(view, run, verdict, first))
    yield JoinMet(run.run_id, list(verdict.met))
    if first is not None:
        output = pack_value("output", [leaves_of(condition)[place].run_id for place in verdict.met])
        yield RunSucceeded(run.run_id, run.attempt, output, "", released=True)
    yield from _cancel_losers(view, run, verdict, f"run {run.run_id}, which waited for it, has enough without it")


def _first(view: View, run: Run, verdict: JoinVerdict, count: int) -> tuple[int, ...]:
    condition = run.condition
    assert condition is not None, "it was judged"
    leaves = leaves_of(condition)
    return tuple(sorted(verdict.met, key=lambda place: view.runs[leaves[place].run_id].ended_seq)[:count])


def _fail(view: View, run: Run, why: str) -> Iterator[Fact]:
    yield RunErrored(run.run_id, run.attempt, why, released=True)
    yield from abort_awaited(view, run)


def _cancel_losers(view: View, run: Run, verdict: JoinVerdict, why: str) -> Iterator[Fact]:
    condition = run.condition
    if condition is None or run.options.get("losers") != "cancel":
        return
    leaves = leaves_of(condition)
    kept = {leaves[place].run_id for place in verdict.met}
    for run_id in runs_of(condition):
        source = view.runs.get(run_id)
        if run_id not in kept and source is not None and source.is_live:
            yield from abort(view, source, why)


def source_of(view: View, run_id: str) -> Source | None:
    """What is known of a run that others wait for; None if it was cleared."""
    run = view.runs.get(run_id)
    if run is None or run.cleared:
        return None
    is_over = run.is_hard or (run.status is Status.INTERRUPTED and not run.is_placed)
    reached = {name for _, name, *_ in run.milestones}
    return Source(run.status is Status.COMPLETED, is_over, reached, _end_in_words(run))


def _end_in_words(run: Run) -> str:
    if run.status is Status.INTERRUPTED:
        return f"was given up ({run.reason})"
    if run.status is Status.COMPLETED:
        return "has completed"
    error = run.error[:_SHOWN_CHARS]
    return f"has failed ({error})" if run.status is Status.ERROR else f"was cancelled ({error})"
