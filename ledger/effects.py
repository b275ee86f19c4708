"""What is left to do: a function of the ledger, never of what the supervisor remembers having tried.

The supervisor performs what is outstanding for the records that it has just touched: nothing becomes outstanding for any other. A boot
looks at all records. Every `sweep_ms` those are looked at for which something was outstanding at the last look, and some of the others in
turn, so that a sweep costs what is under way and not what is live. An effect is done when a fact says so: a start when the attempt is
confirmed or has ended, a delivery when it is acknowledged, a stop when the agent is released. Every effect is harmless to repeat. (A
prototype that remembered what it had tried failed to converge in 70 of 300 seeds.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from perdure.ledger.activation import Activation
from perdure.ledger.codec import unpack
from perdure.ledger.ids import name_of
from perdure.ledger.mail import Mail
from perdure.ledger.run import Run, outcome_of
from perdure.ledger.store.batches import BATCH_MIN
from perdure.ledger.values import shown_input
from perdure.ledger.view import View
from perdure.policies import EndOf, leaves_of


# With `undo` the host undoes the steps of the run: how it ends after that, and why.
class StartAttempt(NamedTuple):
    host_id: str
    agent_id: str
    incarnation: int
    run_id: str
    attempt: int
    input: bytes | None
    collect: bool
    options: dict[str, Any]
    reported: int = 0
    after: int = 0
    over_ms: float = 0
    undo: list[str] | None = None


# The first attempts at many runs of one type, with the same options. What differs is in columns.
class StartBatch(NamedTuple):
    host_id: str
    agent_type: str
    options: dict[str, Any]
    run_ids: list[str]
    incarnations: list[int]
    inputs: list[bytes]


class WakeAgent(NamedTuple):
    """Tell a host to wake an agent. `cause` says how its last life was lost, if it was, and `excused` whether on purpose; `asks` whether
    the ledger knows of calls of it that wait for people."""

    host_id: str
    agent_id: str
    incarnation: int
    reported: int = 0
    cause: str = ""
    asks: bool = False
    excused: bool = False


# What the mailbox has for the agent (`PendingMail.to_hand`), each as a `letter`.
class DeliverMail(NamedTuple):
    host_id: str
    agent_id: str
    incarnation: int


class DeliverEvents(NamedTuple):
    host_id: str
    agent_id: str
    incarnation: int
    run_id: str


# The run is paused: its child is to stop at its next step.
class PauseAttempt(NamedTuple):
    host_id: str
    agent_id: str
    incarnation: int
    run_id: str


class StopAgent(NamedTuple):
    host_id: str
    agent_id: str
    incarnation: int


# The peers that wait for these runs are told.
class TellEnd(NamedTuple):
    run_ids: list[str]


# Delete the storage of a cleared run's child; with an empty `run_id`, the storages of a doomed agent and its descendants.
class ForgetStorage(NamedTuple):
    run_id: str
    agent_id: str


Effect = (
    StartAttempt
    | StartBatch
    | WakeAgent
    | DeliverMail
    | DeliverEvents
    | PauseAttempt
    | StopAgent
    | TellEnd
    | ForgetStorage
)
"""One thing to do, as data. It names the life that it is meant for."""


def outstanding(view: View, keys: Iterable[str], at_ms: int) -> Iterator[Effect]:
    """What is left to do for these runs and agents: one by one for what is odd, and after that together for what is alike."""
    runs, agents, doomed = view.runs, view.agents, view.doomed
    starts: dict[tuple[str, str, int], list[Run]] = {}
    ended: list[str] = []
    for key in keys:
        run = runs.get(key)
        if run is None:
            pass
        elif not run.is_live:
            ended.append(key)
            if run.teardown or run.cleared:
                yield from _for_run(view, run)
        elif _starts_plainly(view, run):
            # Runs of one batch share their options, so it is enough to compare identities.
            starts.setdefault((run.host_id, run.agent_type, id(run.options)), []).append(run)
        elif not run.confirmed or run.teardown or not run.host_id or run.stops_to_undo:
            yield from _for_run(view, run)
        if run is not None and run.host_id and (run.paused or key in view.events):
            yield from _for_steered(view, run, at_ms)
        activation = agents.get(key)
        if key in doomed:
            yield from _for_doomed(view, key)
        elif activation is not None and activation.host_id:
            yield from _for_agent(view, activation, at_ms)
    for alike in starts.values():
        yield from _together(view, alike)
    if ended:
        yield TellEnd(ended)


def everything(view: View, first: int = 0, most: int | None = None) -> list[str]:
    """The keys for which something may be outstanding: every run or agent that is on a host, or is to be deleted. The others wait for a
    place, for a time, or for nothing. With `most`, those of the `most` awake agents from the `first` on."""
    awake = list(islice(view.awake, first, None if most is None else first + most))
    runs = [run_id for agent in awake for run_id in (view.agents[agent].run_id, name_of(agent)) if run_id in view.runs]
    return list(dict.fromkeys([*runs, *view.cleared, *view.doomed, *awake]))


def keys_of(effect: Effect) -> Sequence[str]:
    """The runs and the agents for which an effect stays outstanding until a fact says that it is done. They may be unknown."""
    if isinstance(effect, StartBatch):
        return effect.run_ids
    return () if isinstance(effect, TellEnd) else (name_of(effect.agent_id), effect.agent_id)


def _starts_plainly(view: View, run: Run) -> bool:
    # All that is left to do for the run is to start its first attempt, and nothing is to be delivered behind that.
    if run.attempt != 1 or run.confirmed or not run.host_id or run.input is None or "after" in run.options:
        return False
    if run.collect or run.teardown or run.undo or run.cleared or run.child in view.mailbox or run.over_ms:
        return False
    if run.run_id in view.events:  # they are delivered behind the start
        return False
    activation = view.agents.get(run.child)
    return activation is None or not activation.reported


def _together(view: View, alike: list[Run]) -> Iterator[Effect]:
    if len(alike) < BATCH_MIN:
        for run in alike:
            yield from _for_run(view, run)
        return
    first = alike[0]
    inputs = [run.input or b"" for run in alike]
    ids, incarnations = [run.run_id for run in alike], [run.incarnation for run in alike]
    yield StartBatch(first.host_id, first.agent_type, first.options, ids, incarnations, inputs)


def _for_run(view: View, run: Run) -> list[Effect]:
    effects: list[Effect] = []
    activation, is_live = view.agents.get(run.child), run.is_live
    awake = activation if activation is not None and activation.host_id else None
    begins_again = is_live and not run.host_id and not (run.parked or run.is_put_off)
    # A run that begins again waits until its child has ended its other work: an agent has one life at a time.
    if awake is not None and (run.teardown or run.cleared or begins_again or run.stops_to_undo):
        effects.append(StopAgent(awake.host_id, run.child, awake.incarnation))
    elif is_live and run.host_id and not run.confirmed:
        options = run.options if "after" not in run.options else run.options | {"joined": handed_over(view, run)}
        start = StartAttempt(
            run.host_id, run.child, run.incarnation, run.run_id, run.attempt, run.input, run.collect, options,
            0 if awake is None else awake.reported or 0, run.begun_after, run.over_ms,
            [run.undo, run.error] if run.is_undoing else None,
        )  # fmt: skip
        effects.append(start)
    if run.cleared and awake is None:
        effects.append(ForgetStorage(run.run_id, run.child))
    return effects


def _for_steered(view: View, run: Run, at_ms: int) -> Iterator[Effect]:
    life = run.host_id, run.child, run.incarnation, run.run_id
    events = view.events.get(run.run_id)
    if events is not None and events.is_outstanding(at_ms):
        yield DeliverEvents(*life)
    if run.paused:
        yield PauseAttempt(*life)


def handed_over(view: View, run: Run) -> list[object]:
    """What an attempt is given of the runs that it waited for, in the order of the leaves: None for one that had not come true; the body of
    a milestone; and of a run `about` it and its outcome. Of an output in the payload table it says `large`."""
    condition, given = run.condition, list[object]()
    for place, leaf in enumerate([] if condition is None else leaves_of(condition)):
        source = view.runs.get(leaf.run_id)
        if place not in (run.joined or ()):
            given.append(None)
        elif isinstance(leaf, EndOf):
            gone = {"status": "aborted", "error": "the run was cleared"}
            told = gone if source is None else {**outcome_of(source), "agent_type": source.agent_type}
            given.append({**told, "run_id": leaf.run_id})
        else:
            stones = () if source is None else source.milestones
            given.append(next((body for _, name, _, _, body, _ in stones if name == leaf.name), None))
    return given


def _for_doomed(view: View, agent: str) -> Iterator[Effect]:
    awake = [activation for activation in view.family(agent) if activation.host_id]
    for each in awake:
        yield StopAgent(each.host_id, each.agent_id, each.incarnation)
    if not awake:
        yield ForgetStorage("", agent)


def _for_agent(view: View, activation: Activation, at_ms: int) -> Iterator[Effect]:
    if activation.stopping:
        yield StopAgent(activation.host_id, activation.agent_id, activation.incarnation)
        return
    run = view.runs.get(activation.run_id)
    if run is not None and activation.agent_id not in view.mailbox:
        return  # its start is an effect of the run
    if not activation.confirmed and run is None:
        reported, cause, asks = activation.reported or 0, activation.cause, activation.calls is not None
        agent = activation.host_id, activation.agent_id, activation.incarnation
        yield WakeAgent(*agent, reported, cause, asks, activation.excused)
    box = view.mailbox.get(activation.agent_id)
    if box is not None and box.is_outstanding(at_ms):
        yield DeliverMail(activation.host_id, activation.agent_id, activation.incarnation)


def letter(view: View, mail: Mail) -> tuple[str, str, str, dict[str, object], dict[str, object]]:
    if mail.content is not None and not mail.run_id:
        return mail.mail_id, mail.slot, mail.handler, {}, mail.content
    if mail.is_event:
        return mail.mail_id, mail.slot, mail.handler, {"run_id": mail.run_id}, {**(mail.content or {}), "seq": mail.seq}
    run = view.runs[mail.run_id]
    content = outcome_of(run) if mail.content is None else dict(mail.content)
    if "body" in content:
        content.update(unpack(content.pop("body")))
    return mail.mail_id, mail.slot, mail.handler, about(run), content


def about(run: Run) -> dict[str, object]:
    """What a parent is told of a run besides its outcome."""
    options = run.options
    told = {
        "run_id": run.run_id,
        "agent_type": run.agent_type,
        "status": str(run.status),
        "attempt": run.attempt,
        "retries": run.retries,
        "parent_tool_call_id": options.get("tool_call"),
        "display_order": options.get("order", 0),
        "display": options.get("display"),
        "input_preview": shown_input(options, run.input),
        "detached": not run.is_awaited,
        "started_at_ms": run.requested_at_ms,
        "completed_at_ms": run.ended_at_ms or None,
    }
    if "source" in options:
        told["source"] = options["source"]
    return told
