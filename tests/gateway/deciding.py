"""What a front end decides (`ChatTurns.decided`), played without an agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.actors.gateway.chat_turns import ChatTurns, Deciding, fitting
from perdure.ledger import PerdureError


def said(message_id: str, role: str, *parts: Any) -> Any:
    return {"id": message_id, "role": role, "parts": list(parts)}


def call(state: str, call_id: str = "c1") -> dict[str, Any]:
    return {"type": "tool-add", "toolCallId": call_id, "state": state, "input": {}}


def turn(status: str, request_id: str = "t") -> dict[str, Any]:
    return {"request_id": request_id, "status": status, "message_id": "a1", "steers": "", "base": 0, "waiting": []}


def decided(
    deciding: Deciding[Any],
    turns: Sequence[Any] = (),
    messages: Sequence[Any] = (),
    begun: Any = None,
    more: Mapping[Any, Any] | None = None,
) -> tuple[Any, list[Any]]:
    """The decision where the agent has these turns and messages, and what was done for it. `begun` is what comes of `begin`: a page,
    or what is raised. `more` has what comes of other deeds."""
    ways: dict[Any, Any] = {
        ChatTurns.known: lambda request_id: next((each for each in turns if each["request_id"] == request_id), None),
        ChatTurns.standing: lambda request_id: {
            "known": next((each for each in turns if each["request_id"] == request_id), None),
            "messages": [[each["id"], each["role"]] for each in messages],
        },
        ChatTurns.newest: lambda fits: next(filter(fits, reversed(turns)), None),
        ChatTurns.message: lambda message_id: next((each for each in messages if each["id"] == message_id), None),
        ChatTurns.holder: lambda ids: next(
            (each for each in messages for part in each["parts"] if part.get("toolCallId") in ids), None
        ),
        ChatTurns.transcript: lambda: list(messages),
        ChatTurns.messages: lambda limit: list(messages[-limit:]),
    }
    deeds: dict[Any, Any] = {
        ChatTurns.begin: lambda *_: begun,
        ChatTurns.begin_first: lambda plans, *_: {} if plans else None,
        ChatTurns.cancel_under_way: lambda _: any(each["status"] == "running" for each in turns),
        ChatTurns.answer_in: fitting,
        **(more or {}),
    }
    done: list[Any] = []
    came: Any = None
    while True:
        try:
            method, *given = deciding.throw(came) if isinstance(came, PerdureError) else deciding.send(came)
        except StopIteration as end:
            return end.value, done
        done += [(method, *given[:2])] if method in deeds else []
        came = (ways | deeds)[method](*given)
