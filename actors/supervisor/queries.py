"""The supervisor's desk: hellos, calls of agents, and everything that is asked and answered without becoming a fact.

A *call* is made at most once. It is remembered only while it is under way: here, and by the host that it was handed to. As long as that
host lives it says what became of the call: answered, cut off, or come too late for the agent and so not begun. If it dies, the caller is
told that nobody knows whether the call took effect, unless the method was declared repeatable. Work that must survive is a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any

from perdure.actors.link.wire import error_to_plain
from perdure.actors.ports import World
from perdure.actors.supervisor.publisher import Bulletin
from perdure.actors.supervisor.sessions import Port, Switchboard
from perdure.actors.supervisor.winding_down import WindingDown
from perdure.actors.tasks import Tasks, report_error
from perdure.ledger import (
    AgentAborted,
    AgentBeingDeleted,
    BadRequest,
    Cancel,
    Clear,
    First,
    Forget,
    HostUp,
    OutcomeUnknown,
    PerdureError,
    Requeue,
    Run,
    Stimulus,
    StopLives,
    Store,
    Tell,
    UnknownRun,
    View,
    audit,
    explain,
    frame_of,
    inspection,
    is_within,
    last_end,
    lines,
    name_of,
    overview,
    parked,
    type_of,
    unpack,
)
from perdure.policies import Limits


@dataclass(slots=True)
class Call:
    """A call under way. `host_id` and `incarnation` are the host and the life of the agent that it was handed to, empty before.

    An earlier life of the supervisor may have handed it over already: to the `suspect`, a life of the agent that was there when we heard of
    the call, or to one that had ended by then but may not have ended before the call was made (`is_doubtful`). A suspect that is still
    there can be asked. (`ledger.activation.Lives` says why there is nobody else.)
    """

    peer_id: str
    agent_id: str
    method: str
    body: bytes
    repeatable: bool
    sender: str = ""
    is_doubtful: bool = False
    suspect: int = 0
    host_id: str = ""
    incarnation: int = 0

    @property
    def may_be_lost(self) -> bool:
        """Whether a life other than the one that has it now may have begun it."""
        return self.is_doubtful or self.suspect not in (0, self.incarnation)


class Desk:
    """Answers what peers ask."""

    def __init__(
        self,
        world: World,
        tasks: Tasks,
        now_ms: Callable[[], int],
        view: View,
        switchboard: Switchboard,
        store: Store,
        limits: Limits,
        *,
        findings: list[str],
        bulletin: Bulletin,
    ) -> None:
        self._world, self._view, self._switchboard, self._store, self._limits = world, view, switchboard, store, limits
        self._tasks, self._now_ms, self._findings, self._bulletin = tasks, now_ms, findings, bulletin
        self.winding_down = WindingDown(view, switchboard)
        self._calls: dict[str, Call] = {}
        self._questions: list[tuple[Port, str, str, list[Any]]] = []
        self._inboxes: list[tuple[Port, str, int, list[str]]] = []
        self._answers: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            "known": self._known,
            "inspect": self._inspect,
            "show": self._show,
            "explain": self._explain,
            "frames": self._frames,
            "list": self._list,
            "ps": self._ps,
            "audit": self._audit,
            "limits": self._limits_shown,
            "wind_down": self.winding_down.ask,
        }

    def hello(self, port: Port, said: dict[str, Any]) -> Iterator[Stimulus]:
        """A peer begins a session. A host that was given up meanwhile is told to leave; tenants of earlier lives are stopped."""
        for run_id in said.get("waits", ()):
            self._switchboard.wait(port, run_id)
            self._view.touched[run_id] = None
        if said["role"] != "host":
            return
        port.is_host = True
        host = self._view.hosts.get(port.peer_id)
        if host is None:
            port.say("retire")
            return
        host.pid, host.node, host.rss_mb = said["pid"], said["node"], said["rss_mb"]
        port.say("prepare", list(dict.fromkeys(type_of(agent) for agent in islice(self._view.agents, 200)))[:8])
        for call in self._calls.values():
            if call.host_id == port.peer_id:  # what was said in its last session may not have arrived
                call.is_doubtful, call.suspect, call.host_id = call.may_be_lost, call.incarnation, ""
        for agent, incarnation in said["tenants"]:
            activation = self._view.agents.get(agent)
            if activation is None or activation.incarnation != incarnation or activation.host_id != port.peer_id:
                port.say("stop", agent, incarnation)
        if self._bulletin.observers:
            self._bulletin.welcome(port)
        yield HostUp(port.peer_id, [(agent, incarnation) for agent, incarnation in said["tenants"]], said["farewells"])

    def runs_of(self, message: list[Any]) -> list[str]:
        """The runs that a message speaks of, so that they can be brought back into memory first."""
        tag = message[0]
        if tag in ("Request", "Up", "Progress", "Milestone", "Chunk", "Ended", "Unstarted"):
            return [message[1]]
        if tag == "hello":
            return list(message[1].get("waits", ()))
        if tag == "wait":
            return list(message[1])
        if tag == "ask" and message[2] == "call":
            return [name_of(message[3][0])] if message[3][-1] else []  # asked again: was it a child, when did it live?
        if tag == "ask" and message[2] in ("known", "cancel", "inspect", "show", "explain", "frames", "clear"):
            first = message[3][0]
            return list(first) if isinstance(first, list) else [first]
        return []

    def receive(self, port: Port, message: list[Any]) -> Stimulus | None:
        """Take in a message that is no stimulus. What must be decided first is handed back as one."""
        tag, *rest = message
        if tag == "wait":
            for run_id in rest[0]:
                self._waits(port, run_id)
        elif tag == "answer":
            self._answered(*rest)
        elif tag == "astray":
            self._astray(rest[0])
        elif tag == "cut":
            self._cut_off(rest[0])
        elif tag == "follow":
            self._bulletin.follow(port.peer_id, rest[0])
        elif tag == "unfollow":
            self._bulletin.unfollow(port.peer_id, rest[0])
        elif tag == "observe":
            self._bulletin.observe(port.peer_id, wanted=rest[0])
        elif tag == "happened":
            self._bulletin.happened(*rest)
        elif tag == "body":
            host = self._view.hosts.get(port.peer_id)
            if host is not None:
                host.rss_mb, host.worn = rest
        elif tag == "inbox":
            self._inboxes.append((port, *rest))
        elif tag == "ask":
            return self._asked(port, *rest)
        return None

    def _waits(self, port: Port, run_id: str) -> None:
        """Somebody still waits for this run. One that is unknown by now was cleared meanwhile: nothing will ever come of it."""
        if run_id in self._view.runs:
            self._switchboard.wait(port, run_id)
            self._view.touched[run_id] = None
        else:
            empty = {"summary": "", "output": None, "agent_type": ""}
            port.say("end", run_id, {**empty, "status": "aborted", "error": "the run was cleared"})

    def _asked(self, port: Port, ref: str, name: str, args: list[Any]) -> Stimulus | None:
        if name == "cancel":
            return Cancel(*args)
        if name == "clear":
            return Clear(*args)
        if name == "requeue":
            return Requeue(*args)
        if name == "tell":
            return Tell(*args)
        if name == "forget":
            self._refuse_calls(*args)
            return Forget(*args)
        if name == "abort":
            self._abort_calls(*args)
            return StopLives(args[0])
        if name == "call":
            self._call(port, ref, args)
        else:
            self._questions.append((port, ref, name, args))
        return None

    def _call(self, port: Port, ref: str, args: list[Any]) -> None:
        agent, method, body, home, repeatable, sender, heard, again = args
        known = self._calls.get(ref)
        if known is not None:
            known.peer_id = port.peer_id
            return
        call = self._calls[ref] = Call(port.peer_id, agent, method, body, repeatable, sender)
        if again:
            activation = self._view.agents.get(agent)
            call.is_doubtful = last_end(self._view, agent) > heard
            call.suspect = activation.incarnation if activation is not None and activation.host_id else 0
        if home is not None:
            self._view.homes[agent] = home
        self._view.want(agent)

    def _refuse_calls(self, agent: str) -> None:
        """Who was called before its deletion was asked for, and has not been reached yet, will not be. Later calls are for the next one."""
        for ref, call in list(self._calls.items()):
            if not call.host_id and is_within(call.agent_id, agent):
                self._answered(ref, False, error_to_plain(AgentBeingDeleted(call.agent_id)))

    def _waits_for_deletion(self, ref: str, call: Call) -> bool:
        """Whether a call has to wait until the name is free. One of somebody who is being deleted himself is refused."""
        if self._view.doomed_by(call.sender):
            self._answered(ref, False, error_to_plain(AgentBeingDeleted(call.sender, "sender")))
            return True
        return bool(self._view.doomed_by(call.agent_id))

    def _abort_calls(self, agent: str, reason: str) -> None:
        """The lives of an agent and of all that descends from it are to end. Who waits for a call of theirs is told why."""
        for ref, call in list(self._calls.items()):
            if is_within(call.agent_id, agent) and call.agent_id in self._view.agents:
                self._answered(ref, False, error_to_plain(AgentAborted(call.agent_id, reason)))

    def _astray(self, ref: str) -> None:
        """A call came too late for the life that it was meant for, and did nothing there: it is for the next one."""
        call = self._calls.get(ref)
        if call is not None:
            call.suspect = 0 if call.suspect == call.incarnation else call.suspect
            self._hand_anew(call)

    def _hand_anew(self, call: Call) -> None:
        call.host_id = ""
        self._view.want(call.agent_id)

    def _cut_off(self, ref: str) -> None:
        """A call had begun, or nobody knows whether it had, and will not be answered."""
        call = self._calls.get(ref)
        if call is not None and call.repeatable:
            self._hand_anew(call)
        elif call is not None:
            self._answered(ref, False, error_to_plain(OutcomeUnknown(call.agent_id, call.method)))

    def _answered(self, ref: str, ok: bool, value: Any) -> None:
        call = self._calls.pop(ref, None)
        port = self._switchboard.ports.get(call.peer_id) if call is not None else None
        if port is not None:
            port.say("reply", ref, ok, value)

    def _tell_settled(self) -> None:
        """Tell lives of agents which of the mail that they have handled may be forgotten: what is settled, durably.

        Mail that is on its way to such a life was said to it before this, on the same link. Others have no say any more.
        """
        inboxes, self._inboxes = self._inboxes, []
        for port, agent, incarnation, mail_ids in inboxes:
            activation = self._view.agents.get(agent)
            if activation is None or (activation.incarnation, activation.host_id) != (incarnation, port.peer_id):
                continue
            mail = self._view.mail
            settled = [key for key in mail_ids if key not in mail or not mail[key].is_open]
            port.say("settled", agent, incarnation, settled)

    def after_turn(self) -> None:
        """Hand over the calls whose agents are awake, and answer the questions; what they read is durable."""
        for ref, call in [] if self.winding_down.is_on else list(self._calls.items()):
            if call.host_id or (self._view.doomed and self._waits_for_deletion(ref, call)):
                continue
            activation = self._view.agents.get(call.agent_id)
            port = self._switchboard.ports.get(activation.host_id) if activation is not None else None
            if activation is None or not activation.host_id:
                if call.agent_id not in self._view.wanted:
                    self._view.want(call.agent_id)
                    self._switchboard.arrived.set()
            elif port is not None and not activation.stopping:
                call.host_id, call.incarnation = activation.host_id, activation.incarnation
                may = [call.repeatable, call.may_be_lost]
                port.say("call", call.agent_id, call.incarnation, ref, call.method, call.body, *may)
        self._tell_settled()
        questions, self._questions = self._questions, []
        for port, ref, name, args in questions:
            self._tasks.start(self._answer(port, ref, name, args))

    def hosts_changed(self) -> None:
        """Hosts may be gone: tell the callers of the calls that were with them, or hand the repeatable ones over again."""
        for ref, call in list(self._calls.items()):
            if call.host_id and call.host_id not in self._view.hosts:
                self._cut_off(ref)

    async def _answer(self, port: Port, ref: str, name: str, args: list[Any]) -> None:
        """Answer a question. An error of ours is logged, and is the answer: it says nothing about the ledger."""
        question = self._answers.get(name) or partial(self._unknown, name)
        try:
            answer = await question(*args)
        except PerdureError as problem:
            port.say("reply", ref, False, error_to_plain(problem))
        except OSError:
            raise  # the ledger's disk: this life ends, and the next one is asked again
        except Exception as problem:
            report_error(f"the question {name!r} failed", problem, asyncio.current_task())
            port.say("reply", ref, False, error_to_plain(problem))
        else:
            port.say("reply", ref, True, answer)
        self._switchboard.flush()

    async def _unknown(self, name: str, *_args: Any) -> None:
        raise BadRequest("question", f"{name!r} is not one that a supervisor answers")

    def _run(self, run_id: str) -> Run:
        run = self._view.runs.get(run_id)
        if run is None or run.cleared:
            raise UnknownRun("run_id", f"no run {run_id!r} is known")
        return run

    async def _known(self, run_ids: list[str]) -> list[str]:
        """Which of these runs exist."""
        runs = self._view.runs
        return [run_id for run_id in run_ids if run_id in runs and not runs[run_id].cleared]

    async def _inspect(self, run_id: str) -> dict[str, Any] | None:
        run = self._view.runs.get(run_id)
        return None if run is None or run.cleared else await self._with_output(run)

    async def _show(self, run_id: str) -> dict[str, Any]:
        run = self._run(run_id)
        told = await self._with_output(run)
        told["options"] = run.options
        return told

    async def _with_output(self, run: Run) -> dict[str, Any]:
        told = inspection(run)
        if run.large_output:
            body = await self._world.threads.commit(lambda: self._store.payload(run.run_id, "output"))
            told["output"] = None if body is None else unpack(body)
        return told

    async def _explain(self, run_id: str) -> list[str]:
        return explain(self._view, self._run(run_id), self._now_ms(), self._limits)

    async def _frames(self, run_id: str, after: int) -> list[dict[str, Any]]:
        run = self._run(run_id)
        rows = await self._world.threads.commit(lambda: self._store.facts(run_id, after, frames_only=True))
        frames = (frame_of(row, run.options.get("tool_call"), replay=True) for row in rows)
        return [frame for frame in frames if frame is not None]

    async def _list(
        self,
        parent: str | None,
        statuses: list[str] | None,
        older_than_ms: int | None,
        limit: int,
        first: First = "oldest",
    ) -> list[dict[str, Any]]:
        """Runs by request time. Ended runs that left memory are read from the snapshot."""
        asked = (parent, statuses, older_than_ms, limit, first)
        archived = await self._world.threads.commit(lambda: self._store.ended_runs(*asked))
        return lines(self._view, archived, *asked)

    async def _ps(self, live_max: int = 200) -> dict[str, Any]:
        """What a person watches: counts, processes, and the runs that are live."""
        vitals = self._world.vitals
        return {**overview(self._view, live_max), "supervisor": {"pid": vitals.pid(), "node": vitals.node()}}

    async def _audit(self) -> dict[str, Any]:
        return {**audit(self._view), "parked_mail": parked(self._view), "findings": self._findings}

    async def _limits_shown(self) -> dict[str, Any]:
        return asdict(self._limits)
