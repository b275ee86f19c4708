"""Questions that a run asks people: what is asked, and what is made of the answer.

People answer with plain data, as JSON has it, which the ledger holds to a JSON schema; it has none of the author's classes. The run makes a
value of the annotated type of that. If the type itself refuses what its schema allows, the run asks again, and says why.
"""

from __future__ import annotations

import getpass
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from pydantic import PydanticUserError, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic_core import to_jsonable_python

from perdure.actors.code.schema import Shape
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
    named_ask,
    pack,
    pack_value,
    unpack,
    unpack_value,
)
from perdure.policies import Answerer, Limits, duration_ms

PEOPLE_MAX: Final = 100
ANSWERING: Final = "_perdure_answer_call"
"""The method of a chat that takes an answer to a question about one of its calls."""
Addressees: TypeAlias = str | Sequence[str | tuple[str, float | timedelta]] | None


class Unsaid(Enum):
    """Whether an argument was given, where None is a value."""

    NOTHING = "nothing"


@dataclass(frozen=True)
class Answer:
    """What people have answered to a question of a run. It is true if its value is, so `if await run.ask("Ship?"):` does what it says.

    Attributes:
        value: the answer, of the type that was asked for.
        who: who gave it, the last one if it was asked of several; None if nobody did in time, and this is what `otherwise` said.
        channel: by what it was given: `cli`, `runtime` or `rest`; None if nobody gave it.
        at_ms: when the question was closed.
        args: the arguments as they are to be used: as proposed, or as they were changed by whoever answered; None if none were proposed.
        edited: whether they were changed.
        people: all who have said this.
    """

    value: Any
    who: str | None
    channel: str | None
    at_ms: int
    args: dict[str, Any] | None
    edited: bool
    people: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.value)


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
        """That of what is shown, and of who is to decide it."""
        return digest_of(pack([self.question, self.schema, self.args, self.to, self.people, self.self_answer]))

    def event(self, number: int) -> str:
        """The name of the event that brings the answer."""
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
        """Why the type refuses an answer that fits its schema; empty if it does not."""
        told = unpack(body)
        try:
            if told["value"] is not None:
                self.shape.decode("answer", told["value"])
        except BadRequest as problem:
            return f"{told['who']} answered {unpack_value(told['value'])!r:.200}, which does not fit: {problem.problem}"
        return ""

    def answer(self, run_id: str, body: bytes) -> Answer:
        """Raises `AskExpired` if nobody has answered, and nothing stands for that."""
        told = unpack(body)
        if told["value"] is None:
            raise AskExpired(run_id, self.question)
        return Answer(
            self.shape.decode("answer", told["value"]),
            told["who"] or None,
            told["channel"] or None,
            told["at_ms"],
            None if told["args"] is None else unpack_value(told["args"]),
            told["edited"],
            tuple(told["people"]),
        )


def wanted_answer(
    question: object,
    schema: object,
    limits: Limits,
    *,
    to: object,
    args: object,
    expires: object,
    otherwise: object,
    people: object,
    self_answer: object,
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


def _shape_of(schema: object, most: int) -> tuple[Shape, bytes]:
    if isinstance(schema, list | tuple | set | frozenset):
        choices = list(schema)
        if not choices or not all(isinstance(each, str) and each for each in choices) or len({*choices}) < len(choices):
            raise BadRequest(
                "schema", f"{schema!r:.200} is no list of choices: those are texts, at least one, and each once"
            )
        schema = Literal[tuple(choices)]
    try:
        described = TypeAdapter[Any](cast("Any", schema)).json_schema()
        shape = Shape(schema)
    except (PydanticUserError, PydanticInvalidForJsonSchema, NameError, TypeError) as problem:
        why = str(problem).partition("\n")[0]
        words = f"{schema!r:.200} is no type that people can answer with, nor a list of choices: {why}"
        raise BadRequest("schema", words) from problem
    return shape, pack_value("schema", described, most)


def plain_answer(shape: Shape, field: str, value: object, most: int) -> bytes:
    """A value of the type, as people would give it."""
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

    async def give(self, supervisor: SupervisorClient, limits: Limits) -> Fields:
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

    async def _given_to_agent(self, supervisor: SupervisorClient, said: AnswerAsk) -> Fields:
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
    """The name under which an answer from this machine is recorded."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user has no name here, as in some containers
        return f"user {os.getuid()}"
