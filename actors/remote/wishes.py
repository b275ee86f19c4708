"""What is asked of a gateway, as plain data, and what its answers mean. Pure: the same for sync and async code."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import httpx

from perdure.actors.gateway import refusals
from perdure.actors.life.results import RunResult, run_result
from perdure.actors.link.wire import remote_error
from perdure.ledger import (
    BadRequest,
    HostUnavailable,
    OutcomeUnknown,
    PerdureError,
    RuntimeClosed,
    SupervisorUnreachable,
)
from perdure.ledger import errors as known_errors
from perdure.policies import JsonObject

LAST: Final = frozenset({"finished", "error", "aborted", "cleared"})
TRIES: Final = 60
"""How often a request that may be repeated is made while nobody answers."""
PAUSE_S: Final = 0.25
PAUSE_S_MAX: Final = 2.0
REFUSED: Final = 400
RAISED: Final = 422
AGAIN: Final = frozenset({429, 503})


class Wish(NamedTuple):
    """A request. `repeatable` says that it may be made again if nobody knows whether it was heard."""

    method: str
    path: str
    body: Mapping[str, object] | None = None
    query: Mapping[str, Any] | None = None
    repeatable: bool = True


class Line:
    """Whether a connection may be used: it is open, in the process and on the event loop that began with it."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop: object = None

    def check(self, loop: object = None, *, is_closed: bool) -> None:
        """Raises `RuntimeClosed`, and `BadRequest` for another loop."""
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


def of_run(run_id: str, then: str = "", *, method: str = "GET", body: Mapping[str, object] | None = None) -> Wish:
    """Something about a run."""
    return Wish(method, f"/api/runs/{quote(run_id, safe='')}{then}", body)


def start(type: str, input: object, run_id: str) -> Wish:
    """Begin a run, once."""
    return Wish("POST", "/api/runs", {"type": type, "input": input, "run_id": run_id})


def listing(given: Mapping[str, object]) -> Wish:
    """A page of runs."""
    return Wish("GET", "/api/runs", query={name: value for name, value in given.items() if value is not None})


def doctor(*, deep: bool) -> Wish:
    """Examine the directory."""
    return Wish("GET", "/api/doctor", query={"deep": deep})


def logs(of: str, level: str, since_ms: int, last: int) -> Wish:
    """What was logged."""
    return Wish("GET", "/api/logs", query={"of": of, "level": level, "since_ms": since_ms, "last": last})


def backup(keep: int) -> Wish:
    """Make a backup. Made twice it is one more, of what has changed meanwhile."""
    return Wish("POST", "/api/backup", {"keep": keep})


def stop(timeout_ms: int) -> Wish:
    """Stop the directory."""
    return Wish("POST", "/api/stop", {"timeout_ms": timeout_ms}, repeatable=False)


def clear_runs(
    run_ids: Sequence[str] | None, status: Sequence[str] | None, before_ms: int | None, everything: bool
) -> Wish:
    """Forget runs."""
    given = {"run_ids": run_ids, "status": status, "before_ms": before_ms}
    body = {name: value for name, value in given.items() if value is not None}
    return Wish("POST", "/api/runs/clear", {**body, "all": everything}, repeatable=False)


def inspect(agent: str, sql: str | None) -> Wish:
    """Everything about an agent."""
    return Wish("GET", f"/api/agents/{quote(agent, safe='')}", query={} if sql is None else {"sql": sql})


def forget(agent: str) -> Wish:
    """Delete an agent."""
    return Wish("DELETE", f"/api/agents/{quote(agent, safe='')}", repeatable=False)


def work(kind: str, failed: bool, limit: int) -> Wish:
    """Fibers, schedules or turns."""
    return Wish("GET", f"/api/{kind}", query={"failed": failed, "limit": limit})


def upgrade(agent_type: str | None, now: bool) -> Wish:
    """Which code stands where; with `now` agents at rest leave, to wake with the newest."""
    return Wish("POST", "/api/upgrade", {} if agent_type is None else {"type": agent_type}) if now else CODE


CODE: Final = Wish("GET", "/api/upgrade")


def call(address: Sequence[str], how: str, method: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Wish:
    """A call of an exposed method, which is never repeated."""
    path = "/".join(quote(each, safe="") for each in address)
    body = {"args": list(args), "kwargs": dict(kwargs)}
    return Wish("POST", f"/api/agents/{path}/{how}/{quote(method, safe='')}", body, repeatable=False)


def ended(told: Mapping[str, Any]) -> RunResult:
    """The end of a run, from what is told of it."""
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
    """How long to wait before the next try."""
    return float(min(PAUSE_S_MAX, PAUSE_S * 2 ** min(tries, 10)))


def error_of(status: int, told: object) -> Exception:
    """The error that a refusal tells of, of the class that it had: one of Perdure's, or what the author's code raised."""
    error = told.get("error") if isinstance(told, dict) else None
    if not isinstance(error, dict):
        return SupervisorUnreachable(f"the gateway answered {status}")
    name, words, field = (str(error.get(key, "")) for key in ("type", "message", "field"))
    if status == RAISED:
        kind, _, said = words.partition(": ")
        return remote_error(kind, said, "")
    given = error.get("args")
    kind_of = getattr(refusals, name, None) or getattr(known_errors, name, None)
    if isinstance(kind_of, type) and issubclass(kind_of, PerdureError) and isinstance(given, list):
        return kind_of(*given)
    return (
        BadRequest(field, words.removeprefix(f"{field}: ")) if field else PerdureError(words or f"refused by {status}")
    )


def json_of(answer: httpx.Response) -> object:
    """The JSON of an answer; None if it has none."""
    try:
        return answer.json()
    except ValueError:
        return None


def lost(wish: Wish, problem: httpx.TransportError, tries: int) -> None:
    """A request met nobody, or its line broke. Raises what its caller is told, unless it is to be made again."""
    check_trusted(problem)
    if not wish.repeatable and not isinstance(problem, httpx.ConnectError):
        raise OutcomeUnknown(wish.path, wish.method, str(problem)) from problem
    if tries == TRIES:
        raise SupervisorUnreachable(f"the gateway cannot be reached: {problem}") from problem


def check_trusted(problem: httpx.TransportError) -> None:
    """Raises `SupervisorUnreachable` if the certificate of whoever answers is not believed: to ask again would change nothing."""
    cause: BaseException | None = problem
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        told = f"the certificate of the gateway is not believed: {cause.verify_message}"
        raise SupervisorUnreachable(f"{told}; name who has signed it by authority=") from problem


def is_answered(wish: Wish, answer: httpx.Response, tries: int) -> bool:
    """Whether this is what was asked for. If not, the request is to be made again. Raises the error that a refusal tells of."""
    if answer.status_code < REFUSED:
        return True
    problem = error_of(answer.status_code, json_of(answer))
    is_final = isinstance(problem, HostUnavailable)  # whoever answers has tried before
    if answer.status_code not in AGAIN or not wish.repeatable or tries == TRIES or is_final:
        raise problem
    return False


class Place:
    """How far a watcher has come in the events of a run, over however many connections."""

    def __init__(self, after: int) -> None:
        self.after, self.is_over = after, False
        self._tries, self._rest = 0, ""

    @contextmanager
    def connected(self) -> Iterator[None]:
        """While a connection lasts. That it broke is no error, unless nobody has answered for too long."""
        self._rest = ""
        try:
            yield
        except httpx.TransportError as problem:
            check_trusted(problem)
            if self._tries >= TRIES:
                raise SupervisorUnreachable(f"the gateway cannot be reached: {problem}") from problem

    def pause_s(self) -> float:
        """How long to wait before the next connection."""
        self._tries += 1
        return pause_s(self._tries - 1)

    def take(self, piece: str) -> Iterator[JsonObject]:
        """The events that are whole now."""
        *blocks, self._rest = (self._rest + piece).split("\n\n")
        for block in blocks:
            lines = [line.partition(": ") for line in block.split("\n")]
            if ("event", ": ", "end") in lines:
                self.is_over = True
                return
            data = "".join(value for name, _, value in lines if name == "data")
            if data:
                frame = json.loads(data)
                self.after, self._tries = frame["sequence"], 0
                yield frame
