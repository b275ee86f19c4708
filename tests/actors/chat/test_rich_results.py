"""Tools that return more than plain data: the model is shown what the library itself would show it, now and whenever it is asked again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, ClassVar, cast

import pytest
from pydantic_ai import Agent as LibraryAgent
from pydantic_ai import (
    BinaryContent,
    CachePoint,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    TextContent,
    ToolReturn,
    UploadedFile,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from perdure.actors import ChatAgent, DurableAgent, tool
from perdure.actors.chat.chat_messages import (
    RESULT_BYTES_MAX,
    as_messages,
    for_storage,
    shortened_content,
    shortened_result,
)
from perdure.actors.chat.convert import to_model
from perdure.actors.chat.plain_data import in_parts
from perdure.actors.chat.transcript import _correction
from perdure.ledger import BadRequest
from perdure.policies import estimated_tokens, retold, spoken_content
from perdure.policies.compaction import FILE_TOKENS
from tests.actors.chat.desk import SCRIPT, Outside, play
from tests.actors.chat.room import Room, visit

PNG = BinaryContent(b"\x89PNG", media_type="image/png", vendor_metadata={"detail": "low"})
LINK = ImageUrl("https://example.com/a.png", identifier="mine")

LEFT_OUT = "[The file image/png was left out: the message was longer than one may be]"


class Seen:
    """What the model was shown: of each request, the results and words since the last question."""

    requests: ClassVar[list[list[Any]]] = []


def shown(messages: list[ModelMessage]) -> Iterator[Any]:
    """What the parts of a history say."""
    for part in (part for message in messages for part in message.parts):
        content = getattr(part, "content", None)
        for item in content if isinstance(content, list) else [content]:
            each = item.content if isinstance(item, TextContent) else item
            told = each.data if isinstance(each, BinaryContent) else each
            yield (
                part.part_kind,
                type(each).__name__,
                told,
                getattr(each, "vendor_metadata", None),
                getattr(each, "identifier", None),
            )


async def model(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Call what is asked for, once, and end."""
    Seen.requests.append(list(shown(messages)))
    last = messages[-1].parts[-1]
    words = last.content if last.part_kind == "user-prompt" else ""
    if isinstance(words, str) and words.startswith("call "):
        yield {0: DeltaToolCall(name=words.removeprefix("call "), json_args="{}", tool_call_id=words.replace(" ", "-"))}
    else:
        yield "Done."


def image() -> BinaryContent:
    """A file as the result."""
    Outside.effects["called"] += 1
    return PNG


def mixed() -> list[object]:
    """Data and files."""
    return [{"found": 1}, PNG, "and", LINK]


def rich() -> ToolReturn:
    """A result, what else the model is told, and what it is not."""
    Outside.effects["called"] += 1
    return ToolReturn(
        {"clicked": True}, content=["look:", PNG, TextContent("closely", metadata="secret")], metadata={"key": "secret"}
    )


def pair() -> ToolReturn:
    """The same with a file as its result."""
    return ToolReturn([PNG], content="That is it.", metadata="secret")


TOOLS: list[Callable[[], object]] = [image, mixed, rich, pair]
library = LibraryAgent(FunctionModel(stream_function=model), tools=TOOLS)
Durable = DurableAgent.of(library, name="Durable")


class WithToolset(ChatAgent):
    """The tools come by a toolset."""

    model = FunctionModel(stream_function=model)
    toolsets: ClassVar[list[FunctionToolset[Any]]] = [FunctionToolset(TOOLS, id="all")]


class Plain(ChatAgent):
    """The tools are functions."""

    model = FunctionModel(stream_function=model)

    def tools(self) -> list[object]:
        """All."""
        return [tool(each) for each in TOOLS]


class Inline(ChatAgent):
    """The tools are executed in the agent's process."""

    model = FunctionModel(stream_function=model)

    def tools(self) -> list[object]:
        """All."""
        return [tool(inline=True, name=each.__name__)(lambda each=each: each()) for each in TOOLS]


async def alone(name: str) -> list[list[Any]]:
    """What the library itself shows."""
    Seen.requests = []
    history: list[ModelMessage] = []
    for question in (f"call {name}", "and?"):
        async with library.run_stream(question, message_history=history) as answer:
            await answer.get_output()
        history = answer.all_messages()
    return Seen.requests


@pytest.mark.parametrize("agent", [Durable, WithToolset, Plain, Inline])
@pytest.mark.parametrize("name", [each.__name__ for each in TOOLS])
def test_the_model_is_shown_what_the_library_itself_would_show_it(name: str, agent: type[ChatAgent]) -> None:
    """In the turn and in the next one; and what is not for it is in no message."""
    expected = asyncio.run(alone(name))

    async def story(room: Room) -> None:
        Seen.requests = []
        assert (await room.do("chat", f"call {name}")).ok
        await room.sleep()
        assert (await room.do("chat", "and?")).ok
        messages = await room.do("get_messages")
        assert json.loads(json.dumps(messages)) == messages
        assert "secret" not in str(messages)
        assert as_messages(messages, new_id=str) == messages

    visit(agent, story)
    assert Seen.requests == expected


@pytest.mark.parametrize("agent", [Durable, Plain])
@pytest.mark.parametrize("name", ["image", "rich"])
def test_it_is_shown_the_same_whatever_dies(name: str, agent: type[ChatAgent]) -> None:
    """Unless the call itself died, so that its outcome is unknown."""
    expected = asyncio.run(alone(name))[1]
    Outside.begin(SCRIPT)
    _, _, places = play(f"call {name}", agent=agent)
    for place in range(1, places + 1, 12):
        play(f"call {name}", agent=agent, kill_at=place)
        assert Seen.requests[-1] == expected or "OUTCOME UNKNOWN" in str(Seen.requests[-1]), f"kill_at={place}"


def test_what_is_beside_a_result_is_parts() -> None:
    """Of what no part can hold, the model is told as text."""
    upload = UploadedFile("file-1", provider_name="openai", media_type="image/png")
    output, about = in_parts(
        ToolReturn("it", content=["a", CachePoint(), upload, DocumentUrl("https://example.com/x")])
    )
    kinds = [(part["type"], part.get("mediaType")) for part in about["content"]]
    assert (output, kinds) == ("it", [("text", None), ("text", None), ("file", "document/*")])
    assert "file-1" in about["content"][1]["text"]
    assert in_parts({"type": "file"}) == ({"type": "file"}, {})


def result(output: object, *content: Any) -> dict[str, Any]:
    """A message with a call that has this result."""
    about = {"perdure": {"hasFiles": True, "content": list(content)}}
    part = {"type": "dynamic-tool", "toolCallId": "c", "toolName": "look", "state": "output-available", "input": {}}
    return {"id": "m", "role": "assistant", "parts": [{**part, "output": output, "resultProviderMetadata": about}]}


def file(size: int = 3) -> dict[str, Any]:
    """A part."""
    return {"type": "file", "mediaType": "image/png", "url": f"data:image/png;base64,{'AAAA' * size}"}


def test_a_file_that_is_too_large_is_left_out_whole() -> None:
    """In place of it stands a word that says so. Nothing is cut in the middle."""
    large = file(RESULT_BYTES_MAX // 4)
    assert shortened_result([large, "and"]) == [LEFT_OUT, "and"]
    assert shortened_result([file(80_000)] * 4) == [LEFT_OUT] * 4
    assert [part["text"] for part in shortened_content([large, {"type": "text", "text": "it"}])] == [LEFT_OUT, "it"]
    message: Any = for_storage(cast("Any", result([file(300_000), file()], file(300_000))))
    (part,) = message["parts"]
    assert part["output"] == [LEFT_OUT, file()]
    assert part["resultProviderMetadata"]["perdure"]["content"][0]["text"] == LEFT_OUT
    history = to_model([cast("Any", message)])
    assert [type(each).__name__ for each in cast("Any", history[1].parts[0]).content] == ["str", "BinaryContent"]


def test_files_are_no_text_where_a_conversation_is_counted_or_told_again() -> None:
    message: Any = result(["found", file(1000)], {"type": "text", "text": "look:"}, file(1000))
    assert estimated_tokens(message["parts"]) < 2 * FILE_TOKENS + 100
    said = retold([message], 10_000)
    assert "[file image/png]" in said
    assert "look:" in said
    assert "AAAA" not in said
    assert "AAAA" not in str(spoken_content([message]))


def test_a_result_that_comes_late_is_told_with_its_files() -> None:
    evidence: Any = {"tool": "look", "runId": "r"}
    end = {"ok": True, "output": file(), "beside": {"hasFiles": True, "content": [{"type": "text", "text": "look:"}]}}
    message = _correction("m", "c", evidence, {"output": end})
    assert [each["type"] for each in message["parts"]] == ["text", "file", "text"]
    assert "[file image/png]" in message["parts"][0]["text"]


@pytest.mark.parametrize(
    "told", ["words", {"perdure": 3}, {"perdure": {"content": [{"type": "file"}]}}, {"perdure": {"content": 3}}]
)
def test_what_a_client_sends_in_place_of_it_is_refused(told: object) -> None:
    message = result("it")
    message["parts"][0]["resultProviderMetadata"] = told
    with pytest.raises(BadRequest) as refused:
        as_messages([message], new_id=str)
    assert refused.value.field.startswith("messages[0].parts[0].resultProviderMetadata")
