"""Questions to people: what is asked, and what is made of the answer.

People answer with plain data, as JSON has it, which the ledger holds to a JSON schema; it has none of the author's classes. Whoever asks
makes a value of the annotated type of that. If the type itself refuses what its schema allows, it is asked again, and says why.

What is asked outside of a run is asked by a run of its own (`actors.life.asking`). It is given the question as plain data (`asked`,
`wanted_of`), and gives what people have said as plain data too (`told_of`, `body_of`).
"""

from __future__ import annotations

import asyncio
import getpass
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import partial, reduce
from operator import or_
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Final,
    Literal,
    NamedTuple,
    NoReturn,
    TypeAlias,
    TypedDict,
    Union,
    cast,
    get_args,
    get_origin,
)

from pydantic import PydanticUserError, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic_core import to_jsonable_python

from perdure.actors.code.naming import load_type, place_name
from perdure.actors.code.schema import Shape
from perdure.actors.life.handle import address_of, tell
from perdure.actors.life.results import RunFailed
from perdure.actors.link.direct_calls import split_route
from perdure.actors.link.messages import Call, Fields
from perdure.actors.link.questions import question_of
from perdure.actors.link.supervisor_client import SupervisorClient
from perdure.actors.telemetry.telemetry import carried
from perdure.ledger import (
    ANSWER,
    AnswerAsk,
    AskExpired,
    BadRequest,
    Kept,
    OpenAsk,
    check_bool,
    check_id,
    check_text,
    check_whole,
    checked,
    digest_of,
    is_call_ask,
    name_of,
    named_ask,
    pack,
    pack_value,
    unpack,
    unpack_value,
)
from perdure.policies import Answerer, JsonObject, Limits, duration_ms

PEOPLE_MAX: Final = 100
ANSWER_TO: Final = "answer to "
"""Before the id of a question, the name of the event by which a fiber hears the answer."""
ANSWERING: Final = "_perdure_answer_call"
"""The method of a chat that takes an answer to a question about one of its calls."""
Addressees: TypeAlias = str | Sequence[str | tuple[str, float | timedelta]] | None


# For arguments of which None is a value.
class Unsaid(Enum):
    NOTHING = "nothing"


class AskOptions(TypedDict, total=False):
    """What may be said of a question besides its text and the type of its answer; see `RunContext.ask`."""

    to: Addressees
    args: Mapping[str, object] | None
    expires: float | timedelta | None
    otherwise: object
    people: int
    self_answer: bool


@dataclass(frozen=True)
class Answer:
    """What people have answered to a question. It is true if its value is, so `if await run.ask("Ship?"):` does what it says.

    Attributes:
        value: the answer, of the type that was asked for.
        who: who gave it, the last one if it was asked of several; None if nobody did in time, and this is what `otherwise` said.
        channel: by what it was given, as `runtime`, `cli`, `rest` or `mcp`; None if nobody gave it.
        at_ms: when the question was closed.
        args: the arguments as they are to be used: as proposed, or as they were changed by whoever answered; None if none were proposed.
        edited: whether they were changed.
        people: all who have said this.
        run_id: the run that has asked; of a question with `then` that of its handle.
    """

    value: Any
    who: str | None
    channel: str | None
    at_ms: int
    args: dict[str, Any] | None
    edited: bool
    people: tuple[str, ...]
    run_id: str

    def __bool__(self) -> bool:
        return bool(self.value)


@dataclass(frozen=True)
class NoAnswer:
    """What `then` is told of a question that has no answer. It is false, and its `value` raises the problem.

    Attributes:
        run_id: that of the question's handle.
        problem: `AskExpired` if nobody answered in time, and nothing stands for that; a `RunFailed` if the question was cancelled.
    """

    run_id: str
    problem: AskExpired | RunFailed

    @property
    def value(self) -> NoReturn:
        """There is none: raises the problem."""
        raise self.problem

    def __bool__(self) -> bool:
        return False


class WantedAnswer(NamedTuple):
    """A question that is fit to be asked."""

    question: str
    shape: Shape
    schema: bytes
    args: bytes | None
    to: list[tuple[str, float]]
    people: int
    self_answer: bool
    expires_ms: float
    otherwise: bytes | None

    @property
    def digest(self) -> str:
        return digest_of(pack([self.question, self.schema, self.args, self.to, self.people, self.self_answer]))

    def event(self, number: int) -> str:
        return f"{ANSWER}{number}:{self.digest}"

    def opening(
        self, run_id: str, incarnation: int, number: int, now_ms: int, note: str = "", refuses: str = ""
    ) -> OpenAsk:
        expires_at_ms = 0 if math.isinf(self.expires_ms) else math.ceil(now_ms + self.expires_ms)
        to = [(name, math.ceil(now_ms + after_ms)) for name, after_ms in self.to]
        return OpenAsk(
            run_id, incarnation, number, self.digest, self.question, self.schema, self.args, to, self.people,
            self.self_answer, expires_at_ms, self.otherwise, note, refuses,
        )  # fmt: skip

    def problem(self, body: bytes) -> str:
        # Empty if the type does not refuse it.
        told = unpack(body)
        try:
            if told["value"] is not None:
                self.shape.decode("answer", told["value"])
        except BadRequest as problem:
            return f"{told['who']} answered {unpack_value(told['value'])!r:.200}, which does not fit: {problem.problem}"
        return ""

    def answer(self, run_id: str, body: bytes) -> Answer:
        """Raises `AskExpired` if nobody has answered, and nothing stands for that."""
        return answer_of(run_id, self.question, self.shape, body)

    def asked(self) -> dict[str, object]:
        # Without the type of the answer, which only whoever asks may have.
        asked: dict[str, object] = {
            "question": self.question,
            "schema": unpack_value(self.schema),
            "args": None if self.args is None else unpack_value(self.args),
            "to": [[name, after_ms] for name, after_ms in self.to],
            "people": self.people,
            "self_answer": self.self_answer,
            "expires_ms": None if math.isinf(self.expires_ms) else self.expires_ms,
        }
        return asked if self.otherwise is None else {**asked, "otherwise": unpack_value(self.otherwise)}


def wanted_of(asked: Mapping[str, Any], shape: Shape) -> WantedAnswer:
    return WantedAnswer(
        asked["question"],
        shape,
        pack_value("schema", asked["schema"]),
        None if asked["args"] is None else pack_value("args", asked["args"]),
        [(name, after_ms) for name, after_ms in asked["to"]],
        asked["people"],
        asked["self_answer"],
        math.inf if asked["expires_ms"] is None else asked["expires_ms"],
        pack_value("otherwise", asked["otherwise"]) if "otherwise" in asked else None,
    )


def told_of(body: bytes) -> dict[str, object]:
    """What people have said, as plain data. `answered` is false if nobody did in time, and nothing stands for that."""
    told = unpack(body)
    plain = {name: None if told[name] is None else unpack_value(told[name]) for name in ("value", "args")}
    return {"answered": told["value"] is not None, **told, **plain}


def body_of(told: Mapping[str, object]) -> bytes:
    has = {"value": told["answered"], "args": told["args"] is not None}
    return pack({**told, **{name: pack_value(name, told[name]) if has[name] else None for name in has}})


def answer_of(run_id: str, question: str, shape: Shape, body: bytes) -> Answer:
    """What people have said, of the type that was asked for. Raises `AskExpired` if nobody has, and `BadRequest` if it does not fit."""
    told = unpack(body)
    if told["value"] is None:
        raise AskExpired(run_id, question)
    return Answer(
        shape.decode("answer", told["value"]),
        told["who"] or None,
        told["channel"] or None,
        told["at_ms"],
        None if told["args"] is None else unpack_value(told["args"]),
        told["edited"],
        tuple(told["people"]),
        run_id,
    )


def wanted_answer(
    question: object,
    schema: object,
    limits: Limits,
    *,
    to: object = None,
    args: object = None,
    expires: object = None,
    otherwise: object = Unsaid.NOTHING,
    people: object = 1,
    self_answer: object = False,
) -> WantedAnswer:
    """Check a question. Raises `BadRequest` and `TooLarge`, which name the argument."""
    text = check_text("question", question)
    if not text.strip():
        raise BadRequest("question", "is blank; say what is to be decided")
    most = limits.progress_bytes_max
    pack_value("question", text, most)
    shape, described = _shape_of(schema, most)
    proposed = None if args is None else _plain_args(args, most)
    expires_ms = (
        math.inf if expires is None else checked(lambda: duration_ms("expires", expires, limits.wait_ahead_ms_max))
    )
    instead = None if otherwise is Unsaid.NOTHING else plain_answer(shape, "otherwise", otherwise, most)
    if instead is not None and math.isinf(expires_ms):
        raise BadRequest("otherwise", "is for a question that expires; say when by `expires`")
    return WantedAnswer(
        text,
        shape,
        described,
        proposed,
        addressees(to, limits),
        check_whole("people", people, 1, PEOPLE_MAX),
        check_bool("self_answer", self_answer),
        expires_ms,
        instead,
    )


def shown_by(via: object, to: Sequence[tuple[str, float]]) -> Callable[[JsonObject], object] | None:
    """What tells the agent of a handle of a question that is open, for whoever that shows it to. Raises `BadRequest`."""
    if via is None:
        return None
    address = address_of(via)
    if address is None:
        raise BadRequest("via", f'{via!r:.200} is no handle of an agent; `self.agent(Desk, "ops")` gives one')
    shown_in, method = address.agent_class, getattr(address.agent_class, "on_ask", None)
    if getattr(method, "__perdure_exposed__", None) is None:
        raise BadRequest("via", f"{shown_in.__name__} has no exposed method `on_ask(ask)`, by which it would be told")
    check = getattr(shown_in, "_perdure_check_ask", None)
    if check is not None:
        first_ms = min((after_ms for _, after_ms in to), default=0.0)
        check(name_of(address.agent_id), [name for name, after_ms in to if after_ms <= first_ms])
    return partial(tell, cast("Any", via).on_ask)


def _shape_of(schema: object, most: int) -> tuple[Shape, bytes]:
    schema = type_of_answer(schema)
    try:
        described = TypeAdapter[Any](cast("Any", schema)).json_schema()
        shape = Shape(schema)
    except (PydanticUserError, PydanticInvalidForJsonSchema, NameError, TypeError) as problem:
        why = str(problem).partition("\n")[0]
        words = f"{schema!r:.200} is no type that people can answer with, nor a list of choices: {why}"
        raise BadRequest("schema", words) from problem
    return shape, pack_value("schema", described, most)


def type_of_answer(schema: object) -> object:
    # A list of choices is a type, too.
    if isinstance(schema, list | tuple | set | frozenset):
        choices = list(schema)
        if not choices or not all(isinstance(each, str) and each for each in choices) or len({*choices}) < len(choices):
            raise BadRequest(
                "schema", f"{schema!r:.200} is no list of choices: those are texts, at least one, and each once"
            )
        return Literal[tuple(choices)]
    return schema


def kept_type(kind: object, code_dir: Path | None) -> list[object]:
    """How the type of an answer is found again after a death, as plain data. Raises `BadRequest` for one that is not."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is None or kind is NoneType:
        return ["literal", [None]]
    if origin is Literal and all(type(each) in (str, int, bool, NoneType) for each in parts):
        return ["literal", list(parts)]
    if kind is Ellipsis:
        return ["and so on"]
    if origin in (Union, UnionType):
        return ["any of", [kept_type(each, code_dir) for each in parts]]
    if isinstance(origin, type) and not hasattr(kind, "__metadata__"):  # of `Annotated`
        return ["of", kept_type(origin, code_dir), [kept_type(each, code_dir) for each in parts]]
    if not isinstance(kind, type):
        words = "could not be found again after a death; with `then` it is a class, a list of choices, or a type that is made of those"
        raise BadRequest("schema", f"{kind!r:.200} {words}")
    if kind.__module__ == "builtins":
        return ["class", f"builtins:{kind.__qualname__}"]
    try:
        return ["class", place_name(kind, code_dir)]
    except BadRequest as problem:
        raise BadRequest("schema", problem.problem) from None


def found_type(kept: Sequence[Any], code_dir: Path | None) -> Any:
    """The type of `kept_type`. Raises `UnknownAgentType` if a class of it is not there any more."""
    match kept:
        case ["literal", values]:
            return NoneType if values == [None] else Literal[tuple(values)]
        case ["and so on"]:
            return ...
        case ["any of", parts]:
            return reduce(or_, [found_type(each, code_dir) for each in parts])
        case ["of", origin, parts]:
            return found_type(origin, code_dir)[tuple(found_type(each, code_dir) for each in parts)]
        case [_, name]:
            return load_type(name, code_dir)
    raise BadRequest("schema", f"{kept!r:.200} is no type of an answer")


def plain_answer(shape: Shape, field: str, value: object, most: int) -> bytes:
    fit = shape.decode(field, shape.encode(field, value, most))
    body = pack_value(field, as_json(field, fit), most)
    shape.decode(field, body)
    return body


def as_json(field: str, value: object) -> object:
    """A value as JSON has it. Raises `BadRequest` for what JSON cannot say."""
    try:
        return to_jsonable_python(value, by_alias=True)
    except (ValueError, TypeError, RecursionError) as problem:
        raise BadRequest(field, f"{value!r:.200} cannot be said in JSON: {problem!s:.200}") from problem


def _plain_args(args: object, most: int) -> bytes:
    if not isinstance(args, Mapping) or not all(isinstance(name, str) for name in args):
        raise BadRequest("args", f"{args!r:.200} is no dict of arguments by their names")
    return pack_value("args", as_json("args", dict(args)), most)


def addressees(to: object, limits: Limits) -> list[tuple[str, float]]:
    """Those who are asked, each with the milliseconds after which its turn comes. Raises `BadRequest`."""
    given = [] if to is None else [to] if isinstance(to, str) else to
    if not isinstance(given, list | tuple):
        raise BadRequest("to", f"{to!r:.200} is neither the name of a group or a person, nor a list of them")
    if to is not None and not given:
        raise BadRequest("to", "is empty, so nobody could answer; leave it out to ask everybody")
    found: list[tuple[str, float]] = []
    after_ms = 0.0
    for each in given:
        name, pause = each if isinstance(each, tuple) and len(each) == 2 else (each, 0)  # noqa: PLR2004 - a pair
        after_ms += checked(partial(duration_ms, "to", pause, limits.wait_ahead_ms_max))
        found.append((check_id("to", name, limits.id_max), after_ms))
    if len(found) > PEOPLE_MAX:
        raise BadRequest("to", f"names {len(found)}; the limit is {PEOPLE_MAX}")
    return found


class Answering(NamedTuple):
    """An answer of somebody to a question of the ledger's list, as it was given.

    Attributes:
        ask_id: which question.
        channel: by what it came.
        args: the arguments that were changed, if any.
        digest: that of what was shown, or None.
        answer_id: the same one again is the same answer.
    """

    ask_id: str
    value: object
    by: Answerer
    channel: str
    answer_id: str
    args: object = None
    digest: str | None = None

    async def give(self, supervisor: SupervisorClient, limits: Limits) -> JsonObject:
        """Have it count, durably, and return the question as it stands then. Raises what says why it does not count."""
        said = self.said(limits)
        if is_call_ask(self.ask_id):
            return await self._given_to_agent(supervisor, said)
        return cast("Fields", await supervisor.ask(said))

    def said(self, limits: Limits) -> AnswerAsk:
        """The answer in the words of the ledger. Raises `BadRequest` and `TooLarge`, which name the argument."""
        most, id_max = limits.input_bytes_max, limits.id_max
        return AnswerAsk(
            *(("", 0) if is_call_ask(self.ask_id) else named_ask(self.ask_id)),
            check_id("answer_id", self.answer_id, id_max),
            "" if self.digest is None else check_id("digest", self.digest, id_max),
            check_id("who", self.by.name, id_max),
            sorted(self.by.groups),
            self.by.is_operator,
            self.by.is_admin,
            check_id("channel", self.channel, id_max),
            pack_value("value", as_json("value", self.value), most),
            None if self.args is None else pack_value("args", as_json("args", self.args), most),
        )

    async def _given_to_agent(self, supervisor: SupervisorClient, said: AnswerAsk) -> JsonObject:
        # As if by the agent itself: who may answer is decided by the question, and by no hook of its ancestors.
        agent, home = cast("list[Any]", await supervisor.ask(question_of("answers_to", self.ask_id)))
        args = [Kept(pack_value("ask_id", self.ask_id)), Kept(pack_value("said", pack([*said])))]
        heard = supervisor.peer.heard
        call = Call(
            agent, ANSWERING, pack([args, {}]), home, True, agent, heard, again=False, standalone="", **carried()
        )
        reply, _ = split_route(cast("bytes", await supervisor.ask(call)))
        return cast("Fields", unpack_value(reply))


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user has no name here, as in some containers
        return f"user {os.getuid()}"


# ---------------------------------------------------------------- the time of a tool


class TimeLimit:
    """The time limit of a tool's call, as a block. It stands still while the call waits for people, or for its turn.

    Args:
        most_s: None for no limit.
    """

    def __init__(self, most_s: float | None) -> None:
        self._bound = asyncio.timeout(most_s)
        self._waits, self._left_s = 0, math.inf
        self._is_over = False

    async def __aenter__(self) -> None:
        self._of = TIME_LIMIT.set(self)
        await self._bound.__aenter__()

    async def __aexit__(self, *raised: Any) -> None:  # noqa: PYI036 - as the block that it hands them to takes them
        self._is_over = True
        TIME_LIMIT.reset(self._of)
        await self._bound.__aexit__(*raised)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """A block, within this one, whose time does not count."""
        loop, until_s = asyncio.get_running_loop(), self._bound.when()
        if not self._waits and until_s is not None and self._goes_on:
            self._left_s = until_s - loop.time()
            self._bound.reschedule(None)
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            if not self._waits and self._left_s < math.inf and self._goes_on:
                self._bound.reschedule(loop.time() + self._left_s)

    @property
    def _goes_on(self) -> bool:
        return not (self._is_over or self._bound.expired())


TIME_LIMIT: ContextVar[TimeLimit | None] = ContextVar("perdure_time_limit", default=None)
"""That of the call of a tool which the current code belongs to."""


@contextmanager
def time_stands_still() -> Iterator[None]:
    """A block on the host's loop in which code waits for people, or for its turn: the time of its tool does not pass."""
    limit = TIME_LIMIT.get()
    if limit is None:
        yield
    else:
        with limit.stopped():
            yield
