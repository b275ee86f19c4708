"""The scripted model: its answer is a pure function of the conversation.

A *question* is a text that a user's message may contain, with rounds of parallel tool calls, and a conclusion that states the digest of
each tool result. So the conclusion shows whether every result reached the model whole.

The model has no memory. It finds the newest user message with a question, takes the results that follow, and makes the first calls that
have none. So every recovered conversation gets a sensible answer: a repeated request is answered alike, with fresh call ids; of a cut-off
round only the missing calls are made; and half a text is continued. A user message without a question does not change the subject.

A call is repeated if its result says that this is safe (`again`). Any other text is its result, also a warning that the outcome is unknown.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from perdure.scenarios.provider.events import (
    ArgumentsDelta,
    CallStart,
    Done,
    Event,
    Finish,
    Plain,
    Reasoning,
    Role,
    Text,
    Usage,
    dumped,
    tokens_in,
)

DIGEST_CHARS: Final = 12
Message = dict[str, Any]


class ScriptedCall(Plain):
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)

    @property
    def key(self) -> str:
        return key_of(self.name, self.arguments)


class Round(Plain):
    thinks: str = ""
    says: str = ""
    calls: tuple[ScriptedCall, ...] = ()


class ScriptedQuestion(Plain):
    """A text that a user may ask, and the rounds of the answer. All calls of one question differ.

    `verbatim` has the events of the first replies: reply n is used while the conversation has n assistant messages.
    """

    asks: str
    rounds: tuple[Round, ...] = ()
    concludes: str = "Done"
    verbatim: tuple[tuple[Event, ...], ...] = ()

    @property
    def calls(self) -> tuple[ScriptedCall, ...]:
        return tuple(call for each in self.rounds for call in each.calls)

    @model_validator(mode="after")
    def _calls_differ(self) -> Self:
        twice = [key for key, count in Counter(call.key for call in self.calls).items() if count > 1]
        if twice:
            raise ValueError(f"the question {self.asks!r} asks twice for {', '.join(twice)}")
        return self


class Script(Plain):
    """What the model knows.

    It repeats a call whose result has one of the phrases `again`, up to `again_max` times. `prefill` says what it does with a request that
    ends with an assistant's text.
    """

    questions: tuple[ScriptedQuestion, ...] = ()
    otherwise: str = "I have no script for this."
    again: tuple[str, ...] = ("Call it again if it is still needed", "it is safe to call it again")
    again_max: int = 3
    prefill: Literal["continue", "restart", "refuse"] = "continue"
    piece_chars: int = Field(default=16, ge=1)


@dataclass
class OpenQuestion:
    question: ScriptedQuestion | None = None
    announced: set[str] = field(default_factory=set)
    results: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    said: str = ""
    replies: int = 0


def key_of(name: str, arguments: object) -> str:
    return f"{name} {json.dumps(arguments, sort_keys=True, ensure_ascii=False, separators=(',', ':'))}"


def digest_of(result: str) -> str:
    return sha256(result.encode()).hexdigest()[:DIGEST_CHARS]


def conclusion(question: ScriptedQuestion, results: Sequence[str]) -> str:
    """The final answer, from the result of each call in order."""
    lines = [f"{question.concludes}: {len(results)} results."]
    for number, (call, result) in enumerate(zip(question.calls, results, strict=True), 1):
        lines.append(f"{number}. {call.key} → {digest_of(result)}")
    return "\n".join([*lines, "That is all. ∎"])


def text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))


def read(script: Script, messages: Sequence[Message]) -> OpenQuestion:
    for at in range(len(messages) - 1, -1, -1):
        question = _asked(script, messages[at])
        if question is not None:
            return _since(script, question, messages[at + 1 :])
    return OpenQuestion()


def _asked(script: Script, message: Message) -> ScriptedQuestion | None:
    if message["role"] != "user":
        return None
    text = text_of(message.get("content"))
    return next((question for question in script.questions if question.asks in text), None)


def _since(script: Script, question: ScriptedQuestion, messages: Sequence[Message]) -> OpenQuestion:
    found = OpenQuestion(question)
    keys: dict[str, str] = {}
    for message in messages:
        if message["role"] == "assistant":
            found.replies += 1
            found.said += text_of(message.get("content"))
            called = {
                call["id"]: key_of(call["function"]["name"], json.loads(call["function"]["arguments"]))
                for call in message.get("tool_calls") or ()
            }
            keys |= called
            found.announced |= set(called.values())
        elif message["role"] == "tool":
            found.results[keys[message["tool_call_id"]]].append(text_of(message.get("content")))
            found.said = ""
    if script.prefill == "restart":
        found.said = ""
    return found


def answer(script: Script, messages: Sequence[Message], number: int) -> tuple[Event, ...]:
    # The number of the request only makes call ids fresh.
    found = read(script, messages)
    question = found.question
    if question is None:
        return _reply(script, messages, number, Round(says=script.otherwise))
    if found.replies < len(question.verbatim):
        return question.verbatim[found.replies]
    return _reply(script, messages, number, _next_round(script, question, found))


def _next_round(script: Script, question: ScriptedQuestion, found: OpenQuestion) -> Round:
    for each in question.rounds:
        missing = tuple(call for call in each.calls if not _is_answered(script, found.results[call.key]))
        if not missing:
            continue
        if any(call.key in found.announced for call in each.calls):
            return Round(calls=missing)
        return Round(thinks=each.thinks, says=each.says.removeprefix(found.said), calls=missing)
    results = [found.results[call.key][-1] for call in question.calls]
    return Round(says=conclusion(question, results).removeprefix(found.said))


def _is_answered(script: Script, results: list[str]) -> bool:
    if not results:
        return False
    never_ran = any(phrase in results[-1] for phrase in script.again)
    return not never_ran or len(results) > script.again_max


def _reply(script: Script, messages: Sequence[Message], number: int, each: Round) -> tuple[Event, ...]:
    told = dumped(messages)
    stem = f"call_{sha256(told.encode()).hexdigest()[:8]}_{number:06}"
    body: list[Event] = [Role()]
    body += [Reasoning(text=piece) for piece in pieces(each.thinks, script.piece_chars)]
    body += [Text(text=piece) for piece in pieces(each.says, script.piece_chars)]
    for index, call in enumerate(each.calls):
        body.append(CallStart(index=index, id=f"{stem}_{index}", name=call.name))
        written = dumped(call.arguments)
        body += [ArgumentsDelta(index=index, text=piece) for piece in pieces(written, script.piece_chars)]
    spoken = sum(tokens_in(event.text) for event in body if isinstance(event, Text | Reasoning | ArgumentsDelta))
    finish = Finish(reason="tool_calls" if each.calls else "stop")
    return *body, finish, Usage(prompt=tokens_in(told), completion=spoken), Done()


def pieces(text: str, chars: int) -> Iterator[str]:
    return (text[at : at + chars] for at in range(0, len(text), chars))
