"""What is asked of a gateway, as plain data, and what its answers mean, once for sync and async code."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx

from perdure.actors.gateway import refusals
from perdure.actors.life.conditions import After, checked_condition, condition_as_json
from perdure.actors.life.results import RunResult, run_result
from perdure.actors.link.kept_back import KEPT_BACK
from perdure.actors.link.performed import Performed, performed
from perdure.actors.link.questions import OVER_HTTP, QUESTIONS, Questions, ShowLimits, Told, question_of
from perdure.actors.link.wire import remote_error
from perdure.actors.remote.lines import go_on
from perdure.ledger import (
    BadRequest,
    HostUnavailable,
    PerdureError,
    RuntimeClosed,
    SupervisorUnreachable,
    check_text,
    class_name,
)
from perdure.ledger import errors as known_errors
from perdure.policies import JsonObject

PAUSE_S: Final = 0.25
PAUSE_S_MAX: Final = 2.0
REFUSED: Final = 300
"""Where an answer leads elsewhere, there is no gateway."""
RAISED: Final = 422
AGAIN: Final = frozenset({429, 503})
SEGMENT_MAX: Final = 50_000  # of a URL of httpx, which has 65,536 at most
NO_SEGMENTS: Final = frozenset({"", ".", ".."})
NESTING_MAX: Final = 64
"""Levels of lists and objects in what is looked through for what JSON does not know."""

log = logging.getLogger("perdure.connect")


P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def _nothing(_told: object) -> None: ...


class RemoteRequest(NamedTuple, Generic[T_co]):
    """A request. `told` takes from the answer what its caller gets; `repeatable` says that it may be made again if nobody knows whether it
    was heard; `called` are the agent and the method of a call."""

    method: str
    path: str
    body: Mapping[str, object] | None = None
    query: Mapping[str, object] | None = None
    told: Callable[[Any], T_co] = lambda told: told
    repeatable: bool = True
    called: tuple[str, str] | None = None

    @property
    def http(self) -> Told:
        asked = {"method": self.method, "url": self.path, "params": self.query}
        if self.body is None:
            return asked
        return asked | {"content": _as_json(self.body), "headers": {"content-type": "application/json"}}

    @property
    def uncertain(self) -> tuple[str, str] | None:
        """What may have taken effect if no answer comes, and is not made again: a call, or a method and its path."""
        return None if self.repeatable else self.called or (self.path, self.method)


def _as_json(body: Mapping[str, object]) -> bytes:
    try:
        return _encoded(body)
    except (TypeError, ValueError, RecursionError) as problem:
        for name, value in body.items():
            _check_json(name, value, 0)
        raise BadRequest("body", str(problem)) from problem


def _encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _check_json(field: str, value: object, depth: int) -> None:
    # Raises `BadRequest` with the path of what JSON does not know.
    if depth == NESTING_MAX:
        raise BadRequest(field.partition("[")[0].partition(".")[0], f"is nested deeper than {NESTING_MAX} levels")
    if isinstance(value, dict):
        for key, each in value.items():
            if not isinstance(key, str):
                raise BadRequest(field, f"has the key {key!r:.200}, which is not a string")
            _check_json(f"{field}.{key:.60}", each, depth + 1)
    elif isinstance(value, list | tuple):
        for at, each in enumerate(value):
            _check_json(f"{field}[{at}]", each, depth + 1)
    else:
        try:
            _encoded(value)
        except (TypeError, ValueError):
            if isinstance(value, int):  # of which there is no text for an error either
                raise BadRequest(
                    field, f"an integer of {value.bit_length()} bits has too many digits for JSON"
                ) from None
            words = f"{value!r:.200} is {class_name(type(value))}, and cannot be sent as JSON"
            raise BadRequest(field, words) from None


def segment(field: str, value: object) -> str:
    """A text as a segment of a path. Raises `BadRequest` for what is none there: clients and proxies take it out of paths."""
    text = check_text(field, value)
    if text in NO_SEGMENTS:
        raise BadRequest(field, f"{text!r} is no name in a path, where it would be taken out")
    if len(quoted := quote(text, safe="")) > SEGMENT_MAX:
        raise BadRequest(field, f"has {len(text)} characters, which are too many for a path")
    return quoted


def segments(address: Sequence[object]) -> str:
    """An address as a path: its class and name, and `sub`, a class and a name for each sub-agent."""
    names = ("agent_class", "name")
    fields = (*names, *(f"address[{at}]" for at in range(len(names), len(address))))
    return "/".join(segment(field, each) for field, each in zip(fields, address, strict=False))


class ConnectionState:
    # A connection may be used while it is open, in the process and on the event loop that began with it.

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop: object = None

    def check(self, loop: object = None, *, is_closed: bool) -> None:
        if os.getpid() != self._process:
            raise RuntimeClosed(
                "gateway",
                "this process was forked from the one that connected, and shares its connections; connect here",
            )
        if is_closed:
            raise RuntimeClosed("gateway", "it was closed; connect again")
        self._loop = loop if self._loop is None else self._loop
        if loop is not self._loop:
            raise BadRequest("gateway", "another event loop has its connections; call `connect_async` on each loop")


# ---------------------------------------------------------------- operations
# What has one answer is declared once for both clients, as a method that gives its request. Called on a client, it makes that request.


def operation(request: Callable[Concatenate[Any, P], RemoteRequest[T]]) -> Performed[P, T]:
    return performed(request, "_ask")


def run_path(run_id: str, then: str = "") -> str:
    return f"/api/runs/{segment('run_id', run_id)}{then}"


def _agent_path(agent: str) -> str:
    return f"/api/agents/{segment('address', agent)}"


def given(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def request_of(question: Any) -> RemoteRequest[Any]:
    """The request by which a question is asked that is declared so (`OVER_HTTP`)."""
    how, said = OVER_HTTP[type(question)], question._asdict()
    path = re.sub(r"{(\w+)}", lambda named: segment(named[1], said.pop(named[1])), how.path)
    request = RemoteRequest[Any]("GET", path, query=given(**said) or None)
    return request._replace(told=itemgetter(how.within)) if how.within else request


class Operations(Questions):
    """The operations of a gateway."""

    @operation
    def _asked(self, question: object) -> RemoteRequest[Any]:
        return request_of(question)

    @operation
    def ask(self, name: str, *args: object) -> RemoteRequest[Any]:
        """Ask a question by its name, as `Runtime.ask` does: `explain`, `audit`, `limits`."""
        if QUESTIONS.get(name) not in OVER_HTTP:
            raise BadRequest("question", f"{name!r} is not one that a gateway is asked by its name; see its methods")
        return request_of(question_of(name, *args))

    @operation
    def start(
        self,
        type: str,
        input: object = None,
        *,
        run_id: str | None = None,
        after: After | None = None,
        losers: str = "leave",
    ) -> RemoteRequest[str]:
        """Begin a run of a class that the gateway serves, and return its id when it is durable. The same id with the same content is the
        same run. `after` is what has to come true before it begins, of runs that clients asked for: `all_of("run-1", MilestoneOf("run-2",
        "sources"))`; `losers="cancel"` cancels those of which nothing was needed."""
        asked = {"type": type, "input": input, "run_id": uuid4().hex if run_id is None else run_id}
        condition = checked_condition(after, losers, run_id)
        if condition is not None:
            asked |= {"after": condition_as_json(condition), "losers": losers}
        return RemoteRequest("POST", "/api/runs", asked, told=lambda told: str(told["run_id"]))

    @operation
    def show(self, run_id: str) -> RemoteRequest[Told]:
        """Everything about a run. Raises `UnknownRun`."""
        return RemoteRequest("GET", run_path(run_id))

    @operation
    def runs(self, /, **which: object) -> RemoteRequest[Told]:
        """A page of runs, newest first: `runs`, and `next` for `before`. Filters are `status`, `type`, `parent`, `q`, `prefix`,
        `error`, `parked`, `undoing`, `requested_since_ms`, `requested_before_ms`, `ended_since_ms`, `ended_before_ms`; `limit` is that
        of the page."""
        return RemoteRequest("GET", "/api/runs", query=given(**which))

    @operation
    def overview(self) -> RemoteRequest[Told]:
        """What `perdure ps` tells."""
        return RemoteRequest("GET", "/api/overview")

    @operation
    def cancel(self, run_id: str, reason: str = "cancelled by a client") -> RemoteRequest[str]:
        """Cancel a run, and return its status after that."""
        return RemoteRequest("POST", run_path(run_id, "/cancel"), {"reason": reason}, told=itemgetter("status"))

    @operation
    def retry(self, run_id: str) -> RemoteRequest[str]:
        """Try a run again, and return its status after that. Raises `RetryRefused`."""
        return RemoteRequest("POST", run_path(run_id, "/retry"), {}, told=itemgetter("status"), repeatable=False)

    @operation
    def send(self, run_id: str, event: str, value: object = None, *, event_id: str | None = None) -> RemoteRequest[str]:
        """Send an event to a run, and return the run's status. Raises `EventRefused`."""
        asked = {"event": event, "value": value, "event_id": uuid4().hex if event_id is None else event_id}
        return RemoteRequest("POST", run_path(run_id, "/events"), asked, told=itemgetter("status"))

    @operation
    def pause(self, run_id: str) -> RemoteRequest[str]:
        """Pause a live run, and return its status. Raises `PauseRefused`."""
        return RemoteRequest("POST", run_path(run_id, "/pause"), {}, told=itemgetter("status"))

    @operation
    def resume(self, run_id: str) -> RemoteRequest[str]:
        """Let a paused run go on, and return its status."""
        return RemoteRequest("POST", run_path(run_id, "/resume"), {}, told=itemgetter("status"))

    @operation
    def asks(self, *, to: str | None = None, closed: bool = False) -> RemoteRequest[list[Told]]:
        """The questions that runs ask people, those that wait for longest first; of a group or a person; with `closed`, of runs that are
        live or have ended lately, those too that are closed."""
        query = given(to=to, closed=closed, limit=1_000)
        return RemoteRequest("GET", "/api/asks", query=query, told=itemgetter("asks"))

    @operation
    def answer(
        self,
        ask_id: str,
        value: object,
        *,
        args: Mapping[str, object] | None = None,
        digest: str | None = None,
        who: str | None = None,
    ) -> RemoteRequest[Told]:
        """Answer a question that a run asks people, and return it as it stands then. `args` are used in place of the proposed ones of these
        names, and `digest` is that of the question that was looked at. `who` is for gateways that do not know who asks. Raises
        `AlreadyAnswered`, `AskClosed`, `AnswerForbidden`, `AnswerRefused` and `UnknownAsk`."""
        body = {"value": value, "answer_id": uuid4().hex} | given(args=args, digest=digest, who=who)
        return RemoteRequest("POST", f"/api/asks/{segment('ask_id', ask_id)}/answer", body)

    @operation
    def clear(self, run_id: str) -> RemoteRequest[None]:
        """Forget a run and its child's storage."""
        return RemoteRequest("DELETE", run_path(run_id), told=_nothing, repeatable=False)

    @operation
    def inspect(self, address: str, *, sql: str | None = None) -> RemoteRequest[Told]:
        """Everything about an agent, by its address as name@module:Class. It is not woken. `rows` answer the SQL, which reads only."""
        return RemoteRequest("GET", _agent_path(address), query=given(sql=sql))

    @operation
    def fibers(self, *, failed: bool = False, limit: int = 50) -> RemoteRequest[list[Told]]:
        """Fibers of the agents that wrote last, newest first."""
        return RemoteRequest("GET", "/api/fibers", query=given(failed=failed, limit=limit), told=itemgetter("rows"))

    @operation
    def schedules(self, *, failed: bool = False, limit: int = 50) -> RemoteRequest[list[Told]]:
        """Schedules and queued items of the agents that wrote last, newest first."""
        return RemoteRequest("GET", "/api/schedules", query=given(failed=failed, limit=limit), told=itemgetter("rows"))

    @operation
    def unschedule(self, address: str, schedule: str) -> RemoteRequest[None]:
        """Have an agent cancel a schedule, or drop a queued item, by its key or id. What its `on_start` declares is there again when it
        starts the next time."""
        path = f"{_agent_path(address)}/schedules/{segment('schedule', schedule)}"
        return RemoteRequest("DELETE", path, told=_nothing, repeatable=False)

    @operation
    def turns(self, *, failed: bool = False, limit: int = 50) -> RemoteRequest[list[Told]]:
        """Turns of the chat agents that wrote last, newest first."""
        return RemoteRequest("GET", "/api/turns", query=given(failed=failed, limit=limit), told=itemgetter("rows"))

    @operation
    def limits(self) -> RemoteRequest[Told]:
        """The limits in force; an infinite one is None."""
        return request_of(ShowLimits())

    @operation
    def hosts(self) -> RemoteRequest[Told]:
        """The processes that serve."""
        return RemoteRequest("GET", "/api/hosts")

    @operation
    def logs(
        self, of: str = "", *, level: str = "debug", since_ms: int = 0, last: int = 1_000
    ) -> RemoteRequest[list[Told]]:
        """The newest records that agents' code printed and logged: of a run, an agent or a host, or all. Those of another machine than the
        gateway's name it (`machine`)."""
        which = given(of=of, level=level, since_ms=since_ms, last=last)
        return RemoteRequest("GET", "/api/logs", query=which, told=itemgetter("records"))

    @operation
    def doctor(self, *, deep: bool = False) -> RemoteRequest[list[dict[str, str]]]:
        """What an examination finds: `severity`, `what` and `advice` of each finding."""
        return RemoteRequest("GET", "/api/doctor", query={"deep": deep}, told=itemgetter("findings"))

    @operation
    def backup(self, *, keep: int = 0) -> RemoteRequest[Told]:
        """Have a backup made where the gateway makes them, and wait for it. With `keep` only so many remain, the newest."""
        return RemoteRequest(
            "POST", "/api/backup", {"keep": keep}
        )  # made twice it is one more, of what has changed meanwhile

    @operation
    def upgrade(self, type: str | None = None, *, now: bool = False) -> RemoteRequest[list[Told]]:
        """Which code stands where. With `now` agents at rest that have older code leave, and wake with the newest."""
        method, body = ("POST", given(type=type)) if now else ("GET", None)
        return RemoteRequest(method, "/api/upgrade", body, told=itemgetter("types"))

    @operation
    def forget(self, address: str) -> RemoteRequest[None]:
        """Delete an agent, by its address as name@module:Class, with all that is its own."""
        return RemoteRequest("DELETE", _agent_path(address), told=_nothing, repeatable=False)

    @operation
    def kill(self, process: str) -> RemoteRequest[str]:
        """Kill `supervisor` or a host, where the gateway allows it, and return in words what was done."""
        return RemoteRequest("POST", "/api/kill", {"process": process}, told=itemgetter("told"), repeatable=False)

    @operation
    def stop(self, timeout_ms: int = 30_000) -> RemoteRequest[None]:
        """Stop the directory and what serves it, once work has had so long to end by itself."""
        return RemoteRequest("POST", "/api/stop", {"timeout_ms": timeout_ms}, told=_nothing, repeatable=False)


def call(
    address: Sequence[str], how: str, method: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> RemoteRequest[Any]:
    # A call is never repeated.
    body = {"args": list(args), "kwargs": dict(kwargs)}
    return RemoteRequest(
        "POST",
        f"/api/agents/{segments(address)}/{how}/{segment('method', method)}",
        body,
        told=lambda told: told.get("value"),
        repeatable=False,
        called=("/".join(address), method),
    )


class AgentOperations:
    """The operations of an agent. Its exposed methods are called as if it were here."""

    def __init__(self, ask: Callable[[RemoteRequest[object]], object], address: tuple[str, ...]) -> None:
        segments(address)
        self._ask, self._address = ask, address

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """An exposed method, called at most once."""
        if method.startswith("__"):
            raise AttributeError(method)
        return lambda *args, **kwargs: self._ask(call(self._address, "call", method, args, kwargs))

    @operation
    def tell(self, /, method: str, *args: object, **kwargs: object) -> RemoteRequest[None]:
        """Have an exposed method called exactly once, some time soon; durable on return. It is not repeated if the line breaks."""
        return call(self._address, "tell", method, args, kwargs)._replace(told=_nothing)


def ended(told: Mapping[str, Any]) -> RunResult:
    return run_result(
        run_id=told["run_id"],
        agent_type=told.get("agent_type", ""),
        status=told["status"],
        output=told["output"],
        summary=told.get("summary") or "",
        error=told["error"] or "",
        reason=told.get("reason"),
        child_still_running=told.get("child_still_running"),
        trace=told.get("trace") or "",
    )


def pause_s(tries: int) -> float:
    return float(min(PAUSE_S_MAX, PAUSE_S * 2 ** min(tries, 10)))


def error_of(status: int, told: object) -> Exception:
    # The error has the class that it had at the gateway: one of Perdure's, or that of what the author's code raised.
    error = told.get("error") if isinstance(told, dict) else None
    if not isinstance(error, dict):
        return SupervisorUnreachable(f"the gateway answered {status}")
    name, words, field = (str(error.get(key, "")) for key in ("type", "message", "field"))
    if status == RAISED:
        kind, _, said = words.partition(": ")
        return remote_error(kind, said)
    given = error.get("args")
    kind_of = getattr(refusals, name, None) or getattr(known_errors, name, None)
    if isinstance(kind_of, type) and issubclass(kind_of, PerdureError) and isinstance(given, list):
        return kind_of(*given)
    return (
        BadRequest(field, words.removeprefix(f"{field}: ")) if field else PerdureError(words or f"refused by {status}")
    )


def refusal(answer: httpx.Response) -> Exception:
    # The text of the answer must have been read.
    try:
        told = answer.json()
    except ValueError:
        told = None
    if told is None and "location" in answer.headers:
        return SupervisorUnreachable(f"no gateway is there: {answer.url} leads to {answer.headers['location']:.200}")
    return error_of(answer.status_code, told)


def told_in(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError as problem:
        raise SupervisorUnreachable(f"no gateway is there: what {answer.url} answers is no JSON") from problem


def is_answered(request: RemoteRequest[object], answer: httpx.Response, *, is_last: bool) -> bool:
    # If it returns False, the request is to be made again. Raises the error that a refusal tells of.
    if answer.status_code < REFUSED:
        return True
    problem = refusal(answer)
    is_final = isinstance(problem, HostUnavailable)  # whoever answers has tried before
    if answer.status_code not in AGAIN or not request.repeatable or is_last or is_final:
        raise problem
    return False


class Listening:
    """How far somebody has heard of something, over however many connections.

    Attributes:
        is_over: whether there is nothing more to be heard.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._tries = 0  # connections in a row that told nothing new
        self._rest = ""  # an event whose end is still to come

    @contextmanager
    def connected(self) -> Iterator[None]:
        # That a connection broke is no error, unless nobody has answered for too long.
        self._rest = ""
        try:
            yield
        except httpx.TransportError as problem:
            go_on(problem, self._tries)

    def pause_s(self) -> float:
        self._tries += 1
        return pause_s(self._tries - 1)

    def _events(self, piece: str) -> Iterator[tuple[str, str]]:
        # The names and the data of the events that are whole with a piece of the stream.
        *blocks, self._rest = (self._rest + piece).split("\n\n")
        for block in blocks:
            if block.startswith(": "):
                self._commented(block[2:])
            lines = [line.partition(": ") for line in block.split("\n")]
            name = next((value for field, _, value in lines if field == "event"), "")
            yield name, "".join(value for field, _, value in lines if field == "data")

    def _commented(self, words: str) -> None: ...


class WatchPosition(Listening):
    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after
        self._said: set[str] = set()  # of what keeps the run back

    def _commented(self, words: str) -> None:
        if words.startswith(KEPT_BACK) and words not in self._said:
            self._said.add(words)
            log.warning("perdure: %s", words.removeprefix(KEPT_BACK))

    def take(self, piece: str) -> Iterator[JsonObject]:
        for name, data in self._events(piece):
            if name == "end":
                self.is_over = True
            elif data:
                frame = json.loads(data)
                self.after, self._tries = frame["sequence"], 0
                yield frame
