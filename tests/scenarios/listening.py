"""How the tests listen to the scripted provider: with the OpenAI SDK itself, and everything that it heard as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from openai import AsyncOpenAI

from perdure.scenarios.provider.faults import Fault, FaultKind
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from perdure.scenarios.provider.scripted import Counters
from perdure.scenarios.provider.server import SocketProvider

READ = ScriptedCall(name="read_file", arguments={"path": "déjà vu.txt"})
SEARCH = ScriptedCall(name="search", arguments={"pattern": "élan"})
WRITE = ScriptedCall(name="write_file", arguments={"path": "report.txt", "text": "two → one"})
SCRIPT = Script(
    questions=(
        ScriptedQuestion(
            asks="take stock",
            rounds=(
                Round(thinks="Let me see…", says="I read and I search → at once.", calls=(READ, SEARCH)),
                Round(says="Now I write.", calls=(WRITE,)),
            ),
            concludes="Stock taken",
        ),
    ),
    otherwise="Good morning, ça va?",
)
ASK = {"role": "user", "content": "Please take stock."}


class Heard(NamedTuple):
    """The chunks that came, and the exception that ended them: its class, and that of its cause."""

    chunks: list[dict[str, Any]]
    error: str = ""
    cause: str = ""

    @property
    def text(self) -> str:
        return "".join(choice["delta"]["content"] or "" for choice in self._choices())

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The tool calls, put together as they are sent back."""
        calls: dict[int, dict[str, Any]] = {}
        for choice in self._choices():
            for piece in choice["delta"]["tool_calls"] or ():
                if piece["id"]:
                    function = {"name": piece["function"]["name"], "arguments": ""}
                    calls[piece["index"]] = {"id": piece["id"], "type": "function", "function": function}
                calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
        return list(calls.values())

    @property
    def finish(self) -> str | None:
        return next((choice["finish_reason"] for choice in self._choices() if choice["finish_reason"]), None)

    def _choices(self) -> list[dict[str, Any]]:
        return [choice for chunk in self.chunks for choice in chunk["choices"]]


async def listen(client: AsyncOpenAI, messages: Sequence[dict[str, Any]] = (ASK,), **options: Any) -> Heard:
    """Ask, and listen until the end, whatever it is."""
    chunks: list[dict[str, Any]] = []
    try:
        async with await client.chat.completions.create(
            model="scripted", messages=list(messages), stream=True, **options
        ) as stream:
            async for chunk in stream:
                chunks.append(chunk.model_dump())
    except Exception as error:
        return Heard(chunks, type(error).__name__, type(error.__cause__).__name__ if error.__cause__ else "")
    return Heard(chunks)


def with_results(heard: Heard, results: Sequence[str], said: str | None = None) -> list[dict[str, Any]]:
    """What a client appends to the conversation: what it heard, and a result for each call."""
    message = {"role": "assistant", "content": said or heard.text or None, "tool_calls": heard.calls}
    tools = [
        {"role": "tool", "tool_call_id": call["id"], "content": result}
        for call, result in zip(heard.calls, results, strict=True)
    ]
    return [message, *tools]


def every_place(sizes: Sequence[int]) -> Iterator[Fault]:
    """A clean end, a hang-up and a reset at every event boundary of a reply with frames of these sizes, and inside of every frame."""
    for kind in (FaultKind.END, FaultKind.HANG_UP, FaultKind.RESET):
        for event in range(len(sizes) + 1):
            yield Fault(kind=kind, event=event)
            if event < len(sizes):
                yield Fault(kind=kind, event=event, inside=True)


def wait_until(
    provider: SocketProvider, *, requests: int = 0, ended: int = 0, still_open: int | None = None
) -> Counters:
    """Wait for so many requests, so many ended replies, and exactly so many open ones."""

    def is_so() -> bool:
        counters = provider.counters()
        enough = counters.requests >= requests and sum(counters.ended.values()) >= ended
        return enough and still_open in (None, counters.open)

    with provider.changed:
        assert provider.changed.wait_for(is_so, 10), provider.counters()
    return provider.counters()
