"""What people are asked by way of an MCP client, as elicitations, and their answers.

A chat that is a run asks about its calls. A run, and any run below it, asks what stands in the inbox. The protocol's forms are flat objects
of numbers, texts and truths, so what has another schema is answered by its JSON as a text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, NamedTuple, cast

from perdure.actors.gateway.backend import Backend, asked
from perdure.actors.gateway.chat_turns import CallAnswer, ChatTurns
from perdure.actors.gateway.plain_json import json_text
from perdure.actors.gateway.security import Principal, Scope
from perdure.actors.life.handle import Handle, address_of
from perdure.actors.link.caller import CallerSide
from perdure.actors.mcp_server.offers import Offer
from perdure.ledger import AlreadyAnswered, AskClosed, AskRow, BadRequest, UnknownAsk
from perdure.policies import JsonObject, Part, TurnStatus, answer_refusal, open_calls, tool_name

CHANNEL: Final = "mcp"
EVERY_S: Final = 1.0
"""How often it is looked for new questions while a call waits."""
ACTIONS: Final = ("accept", "decline", "cancel")
APPROVAL: Final[JsonObject] = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}},
    "required": ["approved"],
}
RESULT: Final[JsonObject] = {"type": "object", "properties": {"result": {"type": "string"}}, "required": ["result"]}
ANSWER: Final = "answer"
ARGUMENT: Final = "args."
"""Before the name of an argument that a question proposes, in a form."""
PLAIN: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset({"minLength", "maxLength", "format", "enum"}),
    "integer": frozenset({"minimum", "maximum"}),
    "number": frozenset({"minimum", "maximum"}),
    "boolean": frozenset(),
}
"""The types of a field of a form, and what may be said of each beside `ABOUT`."""
ABOUT: Final = frozenset({"type", "title", "description", "default"})
FORMATS: Final = frozenset({"email", "uri", "date", "date-time"})
OF_OBJECT: Final = frozenset({"type", "properties", "required", "title", "description", "additionalProperties"})


# ---------------------------------------------------------------- forms
# A question as a form, and what was filled in as its answer. Pure.


def is_field(schema: object) -> bool:
    # A form can ask for a value of this schema as it is.
    if not isinstance(schema, Mapping):
        return False
    kind = schema.get("type")
    known = PLAIN.get(kind) if isinstance(kind, str) else None
    if known is None or not schema.keys() <= known | ABOUT:
        return False
    choices = schema.get("enum", ())
    return schema.get("format", "date") in FORMATS and all(isinstance(each, str) for each in choices)


def is_flat(schema: Mapping[str, Any]) -> bool:
    fields = schema.get("properties") or {}
    is_object = schema.get("type") == "object" and bool(fields) and schema.keys() <= OF_OBJECT
    return is_object and all(is_field(each) and not name.startswith(ARGUMENT) for name, each in fields.items())


class Form(NamedTuple):
    """How a question is asked: the fields of the form, and whether they are the answer or hold it."""

    properties: JsonObject
    required: list[str]
    words: str = ""
    is_answer: bool = False
    choices: Mapping[str, object] | None = None
    is_json: bool = False

    def value(self, content: Mapping[str, object]) -> object:
        given = {name: each for name, each in content.items() if not name.startswith(ARGUMENT)}
        if self.is_answer:
            return given
        if ANSWER not in given:
            raise BadRequest(ANSWER, "is missing")
        value = given[ANSWER]
        if self.choices is not None:
            if not isinstance(value, str) or value not in self.choices:
                raise BadRequest(ANSWER, f"{value!r:.200} is none of {', '.join(self.choices)}")
            return self.choices[value]
        return json_of(ANSWER, value) if self.is_json else value


def form_of(schema: Mapping[str, Any]) -> Form:
    if is_flat(schema):
        return Form(dict(schema["properties"]), list(schema.get("required") or ()), is_answer=True)
    if is_field(schema):
        return Form({ANSWER: dict(schema)}, [ANSWER])
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        named = {each if isinstance(each, str) else json_text(each): each for each in choices}
        return Form({ANSWER: {"type": "string", "enum": list(named)}}, [ANSWER], choices=named)
    words = f"Answer with JSON of this schema: {json_text(schema)}"
    return Form({ANSWER: {"type": "string", "description": words}}, [ANSWER], words, is_json=True)


def json_of(field: str, text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError as problem:
        raise BadRequest(field, f"{text!r:.200} is no JSON") from problem


def argument_field(value: object) -> JsonObject:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")):
        if isinstance(value, kind):
            return {"type": name, "default": cast("Any", value)}
    return {"type": "string", "default": json_text(value), "description": "As JSON."}


def form_elicitation(row: AskRow, wrong: str | None = None) -> JsonObject:
    # `wrong` says why the answer before was not taken.
    form, proposed = form_of(row["schema"]), row["args"] or {}
    fields = {f"{ARGUMENT}{name}": argument_field(value) for name, value in proposed.items()}
    note = f"Asked again: {row['note']}." if row["note"] else ""
    shown = f"Proposed arguments, which you may change: {json_text(proposed)}" if proposed else ""
    refused = f"That was not taken: {wrong}" if wrong else ""
    words = "\n".join(each for each in (refused, row["question"], note, shown, form.words) if each)
    schema: JsonObject = {
        "type": "object",
        "properties": {**form.properties, **fields},
        "required": cast("Any", form.required),
    }
    return _elicitation(words, schema)


def filled_in(row: AskRow, content: Mapping[str, object]) -> tuple[object, JsonObject | None]:
    # The answer, and the arguments that were changed; None if none were.
    value, proposed = form_of(row["schema"]).value(content), row["args"] or {}
    args: JsonObject = {}
    for name, was in proposed.items():
        given = content.get(f"{ARGUMENT}{name}")
        if given is not None:
            is_plain = isinstance(was, bool | int | float | str)
            args[name] = cast("Any", given if is_plain else json_of(f"{ARGUMENT}{name}", given))
    changed = {name: each for name, each in args.items() if each != proposed[name]}
    return value, changed or None


def key_of(row: AskRow) -> str:
    # A question that is asked anew has another id, since clients never answer the same twice.
    return f"{row['ask_id']}/{row['opened_at_ms']}"


def _elicitation(words: str, schema: JsonObject) -> JsonObject:
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": words, "requestedSchema": schema},
    }


def call_elicitation(part: Part) -> JsonObject:
    is_approval = part.get("state") == "approval-requested"
    name = tool_name(part)
    words = f"May {name} be called with {part.get('input')}?" if is_approval else f"{name}: {part.get('input')}"
    return _elicitation(words, APPROVAL if is_approval else RESULT)


def said_in(key: str, response: object) -> tuple[bool, Mapping[str, object]]:
    # Whether somebody has filled in a form, and what.
    if not isinstance(response, Mapping) or response.get("action") not in ACTIONS:
        raise BadRequest("inputResponses", f"the answer to {key!r:.100} has no action")
    content = response.get("content") or {}
    if not isinstance(content, Mapping):
        raise BadRequest("inputResponses", f"the content of the answer to {key!r:.100} is no object")
    return response["action"] == "accept", content


# ---------------------------------------------------------------- questions


class QuestionsBelow:
    """The questions of runs, and of chats that are runs: the conversation of such a run has the run's id as its name."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    # the inbox

    async def inbox(self, who: Principal, to: str | None) -> list[JsonObject]:
        rows = cast("list[JsonObject]", await self._backend.ask("asks", to, False))
        return [row for row in rows if await self._backend.may_see_ask(who, row)]

    async def of_run(self, who: Principal, run_id: str) -> dict[str, AskRow]:
        # The questions of the run and of those below it, as far as this principal may answer and has not; by the ids of their
        # elicitations.
        if Scope.CHAT not in who.scopes:
            return {}
        answerer = who.answerer()
        rows = cast("list[AskRow]", await self._backend.ask("asks_below", run_id))
        return {
            key_of(row): row
            for row in rows
            if not answer_refusal(answerer, row["to"], row["began_by"] or "", self_answer=row["self_answer"])
            and all(each["who"] != answerer.name for each in row["answers"])
        }

    async def changes(self, who: Principal, run_id: str) -> AsyncGenerator[dict[str, AskRow], None]:
        # Gives the questions each time that they are others.
        known: dict[str, AskRow] = {}
        while True:
            found = await self.of_run(who, run_id)
            if found.keys() != known.keys():
                yield found
            known = found
            await asyncio.sleep(EVERY_S)

    async def answer_ask(
        self,
        who: Principal,
        ask_id: str,
        value: object,
        *,
        args: object = None,
        digest: str | None = None,
        named: str | None = None,
    ) -> JsonObject:
        # Returns the question as it is then.
        client = await self._backend.client()
        answered = await client.answer(ask_id, value, who.answerer(named), CHANNEL, args=args, digest=digest)
        return cast("JsonObject", answered)

    async def fill_in(self, who: Principal, row: AskRow, response: object) -> None:
        """Answer a question by the response to its elicitation. Only a form that was filled in is an answer: others may answer what this
        one has declined. The first answer counts, so a later one is ignored. Raises `BadRequest` for one that does not fit."""
        is_filled, content = said_in(key_of(row), response)
        if not is_filled:
            return
        value, args = filled_in(row, content)
        try:
            await self.answer_ask(who, row["ask_id"], value, args=args, digest=row["digest"])
        except (AlreadyAnswered, AskClosed, UnknownAsk):
            return

    # the calls of a chat, and all of a task

    async def open(
        self, who: Principal, offer: Offer, run_id: str, known: Mapping[str, object]
    ) -> Mapping[str, JsonObject]:
        # The keys are the ids of calls or questions, which are never used again.
        calls = await self._waiting(offer, known) if offer.is_chat else {}
        asks = await self.of_run(who, run_id)
        found = {call_id: call_elicitation(part) for call_id, part in calls.items()}
        return found | {key: form_elicitation(row) for key, row in asks.items()}

    async def answer(
        self, who: Principal, offer: Offer, run_id: str, known: Mapping[str, object], said: Mapping[str, object]
    ) -> None:
        # What waits for nothing is ignored: the first answer counts.
        waiting = await self._waiting(offer, known) if offer.is_chat else {}
        asks = await self.of_run(who, run_id)
        for key, response in said.items():
            is_yes, content = said_in(key, response)
            if key in asks:
                await self.fill_in(who, asks[key], response)
            if key not in waiting:
                continue
            if waiting[key].get("state") == "approval-requested":
                given = CallAnswer(key, approved=is_yes and content.get("approved", True) is True)
            elif is_yes:
                given = CallAnswer(key, content.get("result", content))
            else:
                given = CallAnswer(key, error="The user did not answer.")
            client, address = await self._backend.client(), address_of(await self._chat(offer, known))
            assert address is not None
            await ChatTurns(CallerSide(client.caller, address), who, CHANNEL).answer(given)

    async def _waiting(self, offer: Offer, known: Mapping[str, object]) -> dict[str, Part]:
        handle = await self._chat(offer, known)
        turn = await asked(handle.inspect_turn(known["run_id"]))
        if turn is None or turn["status"] != TurnStatus.PARKED:
            return {}
        parts = [part for message in await asked(handle.get_messages()) for part in message["parts"]]
        return {str(part["toolCallId"]): part for part in open_calls(parts)}

    async def _chat(self, offer: Offer, known: Mapping[str, object]) -> Handle:
        client = await self._backend.client()
        return cast("Handle", client.agent(offer.agent_class, str(known["run_id"])))
