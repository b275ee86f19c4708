"""The requests of an agent for runs: checked, encoded, and given their ids. What is wrong with one is said before anything is written."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from perdure.actors.code.naming import NO_CLASS, type_name
from perdure.actors.code.signatures import Entered, check_options, check_takes, run_shapes
from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.actors.life.child_types import AsyncChild, Child, RunOptions
from perdure.actors.life.class_options import Runs, check_asked, check_class, class_options
from perdure.actors.life.conditions import condition_options, n_of
from perdure.actors.life.host_options import Placement, pool_spec
from perdure.actors.life.life import Life
from perdure.actors.life.results import Detached
from perdure.actors.telemetry.telemetry import carried_by_run
from perdure.ledger import (
    BEGAN_BY,
    BadRequest,
    Kept,
    Request,
    UnknownAgentType,
    check_id,
    check_ms,
    check_text,
    check_whole,
    check_word,
    digest_of,
    pack,
    pack_value,
    preview_of,
    shown,
)
from perdure.policies import Json, JsonObject, Limits, condition_from, runs_of

Input = TypeVar("Input")
Output = TypeVar("Output")

PLAIN = Detached()
ASKED: Final = Detached(max_budget_ms=math.inf, no_progress_budget_ms=0)
"""How a question without a waiter is followed: until it is answered, expires or is cancelled."""
FIRST_OK: Final = "perdure:first_ok"
"""The type of what decides about `first_ok`. No class has it."""
BEHALF_MAX: Final = 8  # agents whose tool call a run is done for
_PAIR: Final = ("agent_class", "input")
_ARGUMENTS: Final = {"input", "detached", *RunOptions.__annotations__}
_ORDER_MAX: Final = (1 << 53) - 1  # what the page can count to


# A request with its class, and whether the run goes on when the wait for it is cancelled.
class RequestedRun(NamedTuple):
    agent_class: type
    request: Request
    is_left: bool = False


Requests: TypeAlias = Sequence[tuple[Child[Input, Output], Input]]
AsyncRequests: TypeAlias = Sequence[tuple[AsyncChild[Input, Output], Input]]
"""Many requests of one type, as type checkers know them."""

Wanted = tuple[type, object] | dict[str, Any]
"""How an author asks for one of many runs: class and input, or all arguments of `run_agent_tool` by their names."""


# What the runs of one class that are asked for together have in common. Their requests share `options`, which is never changed.
class ClassRequest(NamedTuple):
    takes: Entered
    agent_type: str
    options: JsonObject
    activity: Activity | None
    wait: bool


class RunRequests:
    """Makes the requests of one life of an agent."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._checked: tuple[Detached, JsonObject] | None = None

    def many(self, requests: Sequence[Wanted], detached: bool | Detached) -> list[RequestedRun]:
        """The requests for many runs, all of them checked before any is made known."""
        entries: list[RequestedRun] = []
        self._options_of(detached)  # what is wrong with it is wrong with no request
        kinds: dict[int, ClassRequest] = {}  # by the identity of the class, since an author may hand over anything
        for at, each in enumerate(requests):
            try:
                entries.append(self._entry(each, detached, kinds))
            except BadRequest as problem:
                field = f"requests[{at}].{problem.field}".rstrip(".")
                raise type(problem)(field, problem.problem) from problem.__cause__
        _check_order([entry.request for entry in entries])
        return entries

    def _entry(self, each: Wanted, detached: bool | Detached, kinds: dict[int, ClassRequest]) -> RequestedRun:
        if not isinstance(each, tuple | list) and isinstance(each, Mapping):  # the second asks for longer
            asked = {"detached": detached, **each}
            agent_class = asked.pop("agent_class", None)
            if agent_class is None:
                raise BadRequest("agent_class", "is missing")
            check_options("run_agent_tool", asked, _ARGUMENTS)
            return self.one(agent_class, asked.pop("input", None), **asked)
        if not isinstance(each, tuple | list) or len(each) != len(_PAIR):
            raise BadRequest("", f"{each!r:.200} is neither a pair of class and input nor a mapping")
        agent_class, value = each
        kind = kinds.get(id(agent_class))
        if kind is None:
            kind = kinds[id(agent_class)] = self._kind(agent_class, detached)
        return RequestedRun(agent_class, self._request(kind, value))

    def first_of(self, n: int, asked: Sequence[RequestedRun]) -> Request:
        """The request that decides which of these are the first `n` to complete. It has no child: `join_decisions` answers it."""
        if check_whole("n", n, least=1) > len(asked):
            raise BadRequest("n", f"{n} of {len(asked)} requests can never complete")
        if not all(entry.request.wait for entry in asked):
            raise BadRequest("detached", "nobody would wait for a detached run; ask for all of them without")
        if any("on_limit" in entry.request.options for entry in asked):
            raise BadRequest("on_limit", "a run that is refused at the limit would be no loser; leave it at 'queue'")
        run_ids = [entry.request.run_id for entry in asked]
        if doubled := next((run_id for run_id, count in Counter(run_ids).items() if count > 1), None):
            raise BadRequest("requests", f"run {doubled!r} is in it twice, and can be one of the first only once")
        life = self._life
        activity = ACTIVITY.get() or Activity(life.agent_id)
        waits = condition_options(n_of(n, *run_ids), "cancel", None, life.limits.id_max)
        digest = digest_of(pack(waits["after"]))
        run_id = activity.derive(FIRST_OK, digest)
        options: JsonObject = {**waits, "first": n, **carried_by_run()}
        return Request(
            run_id, FIRST_OK, life.agent_id, activity.run_id, digest, pack(None), options, life.incarnation, wait=True
        )

    def one(
        self,
        agent_class: type,
        input: object,
        *,
        detached: bool | Detached,
        on_cancel: str | None = None,
        **options: Any,
    ) -> RequestedRun:
        if on_cancel is not None:
            check_word("on_cancel", on_cancel, ("cancel", "leave"))
        if on_cancel is not None and detached:
            raise BadRequest("on_cancel", "nobody waits for a detached run, so it is not cancelled with whoever waits")
        request = self._request_of(agent_class, input, detached=detached, **options)
        return RequestedRun(agent_class, request, on_cancel == "leave")

    def question(
        self,
        agent_class: type,
        asked: Mapping[str, object],
        run_id: str | None,
        then: str,
        display: JsonObject | None = None,
    ) -> RequestedRun:
        # The run is waited for, or an agent's method `then` is told the answer.
        follow, shown = ASKED if then else False, asked["question"]
        entry = self.one(agent_class, asked, detached=follow, run_id=run_id, input_preview=shown, display=display)
        if not then:
            return entry
        options = {**entry.request.options, "on_finish": then}
        return entry._replace(request=entry.request._replace(options=options))

    def _request_of(
        self,
        agent_class: type,
        input: object,
        *,
        run_id: str | None = None,
        detached: bool | Detached = False,
        parent_tool_call_id: str | None = None,
        display_order: int = 0,
        display: JsonObject | None = None,
        input_preview: Json = None,
        on_limit: str = "queue",
        placement: Placement | None = None,
        after: object = None,
        losers: str = "leave",
    ) -> Request:
        kind = self._kind(agent_class, detached, parent_tool_call_id)
        check_whole("display_order", display_order, least=-_ORDER_MAX, most=_ORDER_MAX)
        options: dict[str, Any] = {}
        pool = None if placement is None else pool_spec(placement, self._life.services.package)
        if pool is not None:  # a tool's, instead of what the class asks for that executes it
            options["pool"] = pool
        if parent_tool_call_id is not None:
            options["tool_call"] = check_text("parent_tool_call_id", parent_tool_call_id)
        if display is not None and not isinstance(display, Mapping):
            raise BadRequest("display", f"{display!r:.200} is no mapping")
        for key, field, value in (("display", "display", display), ("preview", "input_preview", input_preview)):
            if value is not None:
                options[key] = Kept(pack_value(field, value, self._life.limits.input_bytes_max))
        if display_order:
            options["order"] = display_order
        if check_word("on_limit", on_limit, ("queue", "reject")) == "reject":
            options["on_limit"] = "reject"
        if run_id is not None:
            check_id("run_id", run_id, self._life.limits.id_max)
        options |= condition_options(after, losers, run_id, self._life.limits.id_max)
        return self._request(kind, input, options, run_id)

    def _kind(self, agent_class: type, detached: bool | Detached, tool_call: str | None = None) -> ClassRequest:
        life, takes = self._life, input_shape(agent_class)
        agent_type = type_name(agent_class, life.code_dir)
        options = class_options(cast("type[Runs]", agent_class), life.agent, life.services.package) | carried_by_run()
        options |= self._options_of(detached)
        activity = ACTIVITY.get()
        run = activity.run if activity is not None else None
        behalf = ([life.agent_id] if tool_call else []) + list(run.behalf if run is not None else ())
        if behalf:
            options["behalf"] = behalf[:BEHALF_MAX]
        if began_by := (activity.began_by if activity is not None else "") or (run.began_by if run is not None else ""):
            options[BEGAN_BY] = began_by
        return ClassRequest(takes, agent_type, options, activity, not detached)

    def _request(
        self, kind: ClassRequest, input: object, more: JsonObject | None = None, run_id: str | None = None
    ) -> Request:
        life = self._life
        activity = kind.activity or Activity(life.agent_id)
        body, digest = kind.takes.encode(input, life.limits.input_bytes_max)
        options = kind.options
        shown = preview(body, life.limits)
        if shown or more:
            options = options | shown | (more or {})
        if run_id is None:
            # Runs of the same content that wait for different things are told apart by that, and not by who asks first.
            waits = digest_of(pack(more["after"])) if more and "after" in more else ""
            run_id = activity.derive(kind.agent_type, digest + waits)
        return Request(
            run_id,
            kind.agent_type,
            life.agent_id,
            activity.run_id,
            digest,
            body,
            options,
            life.incarnation,
            kind.wait,
        )

    def _options_of(self, detached: bool | Detached) -> JsonObject:
        if not isinstance(detached, bool | Detached):
            raise BadRequest("detached", f"{detached!r:.200} is neither a bool nor a `Detached`")
        if not detached:
            return {}
        wanted = detached if isinstance(detached, Detached) else PLAIN
        if self._checked is None or self._checked[0] is not wanted:  # of a batch it is checked once
            self._checked = wanted, self._check(wanted)
        return self._checked[1]

    def _check(self, detached: Detached) -> JsonObject:
        agent = self._life.agent
        options = detached.options(agent)
        for name, content in (("on_finish", "result"), ("on_give_up", "result"), ("on_milestone", "milestone")):
            if name in options:
                check_takes(type(agent), name, str(options[name]), "run", content)
        if options.get("notify") and not hasattr(agent, "_perdure_notify"):
            raise BadRequest(
                "notify",
                f"{type(agent).__name__} is no chat agent, so there is no chat to notify; name a handler instead",
            )
        if options.get("notify"):
            options.setdefault("on_finish", "_perdure_notify")
        milestones = options.get("milestones")
        if isinstance(milestones, dict) and hasattr(agent, "_perdure_notify"):
            options.setdefault("on_milestone", f"_perdure_{milestones['mode']}")
        if milestones and "on_milestone" not in options:
            raise BadRequest(
                "on_milestones",
                f"{type(agent).__name__} is no chat agent, so name the method that is told: `on_milestone`",
            )
        for option, attribute in (
            ("max_budget_ms", "detached_max_budget_ms"),
            ("no_progress_budget_ms", "detached_no_progress_budget_ms"),
        ):
            value = getattr(agent, attribute, None)
            if option not in options and value is not None:
                options[option] = check_ms(attribute, value)
        return options


def _check_order(requests: Sequence[Request]) -> None:
    # What waits for others comes after them in a batch. So no circle can be asked for.
    after = {
        each.run_id: runs_of(condition_from(each.options["after"])) for each in requests if "after" in each.options
    }
    places = {each.run_id: place for place, each in enumerate(requests)} if after else {}
    try:
        TopologicalSorter(after).prepare()
    except CycleError as circle:
        raise BadRequest("after", f"these runs would wait for each other: {', '.join(circle.args[1])}") from None
    for run_id, sources in after.items():
        late = next((source for source in sources if places.get(source, -1) > places[run_id]), None)
        if late is not None:
            raise BadRequest(
                "after", f"run {run_id!r} waits for {late!r}, which comes later in the batch; put that before it"
            )


def input_shape(agent_class: type) -> Entered:
    """What `run` of this class takes. Raises `BadRequest` for whatever is wrong with the class."""
    check_asked(agent_class)
    if isinstance(agent_class, type) and callable(getattr(agent_class, "run", None)):
        return _checked_shape(agent_class)
    check_class(agent_class)
    name = getattr(agent_class, "__name__", repr(agent_class))
    advice = "" if isinstance(agent_class, type) else f"; {NO_CLASS}"
    raise UnknownAgentType("agent_class", f"{name} is not an agent class with a `run` method{advice}")


@lru_cache(maxsize=4096)
def _checked_shape(agent_class: type) -> Entered:
    check_class(agent_class)
    return run_shapes(agent_class)


def preview(body: bytes, limits: Limits) -> JsonObject:
    # An input that is too large to stand in its fact is cut here, so that the supervisor need not read it.
    return {"preview": preview_of(shown(body))} if len(body) > limits.inline_bytes_max else {}
