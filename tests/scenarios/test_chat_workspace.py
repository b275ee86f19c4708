"""The workspace: its tools do what they say and stay inside, and answers and effects that are not as they must be are found out."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from perdure.actors.chat.tools import Toolset
from perdure.actors.ray_world.os_processes import ProcessId, process_of, wait_until_gone
from perdure.actors.sim_world.virtual_loop import VirtualLoop
from perdure.scenarios.cast.workspace import (
    PLACE,
    TOOLS,
    Workspace,
    WorkspaceError,
    read_file,
    search,
    shell,
    write_file,
)
from perdure.scenarios.provider.events import Text
from perdure.scenarios.provider.faults import FaultPlan
from perdure.scenarios.provider.script import Script, answer, conclusion
from perdure.scenarios.provider.sim import SIM_URL, SimProvider
from tests.scenarios.listening import every_place, listen, with_results


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    workspace = Workspace.create(tmp_path / "workspace", seed=7)
    for name, value in workspace.environment.items():
        monkeypatch.setenv(name, value)
    return workspace


# the tools


def test_a_file_that_is_written_can_be_read_and_its_effect_is_noted_once(workspace: Workspace) -> None:
    told = asyncio.run(write_file("reports/a.txt", "élan"))
    assert told == "wrote 4 characters to reports/a.txt"
    assert asyncio.run(read_file("reports/a.txt")) == "élan"
    (effect,) = workspace.effects()
    assert effect == 'write_file {"path":"reports/a.txt","text":"élan"}'


def test_a_search_names_every_line_that_matches(workspace: Workspace) -> None:
    found = asyncio.run(search("kiln.*∎")).splitlines()
    plain = [
        f"shelf/{path.name}:{number}: {line}"
        for path in sorted((workspace.files / "shelf").glob("*.txt"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if "∎" in line.partition("kiln")[2]
    ]
    assert plain
    assert found == [f"{len(plain)} lines", *plain]


def test_a_command_says_how_it_ended_and_what_it_printed(workspace: Workspace) -> None:
    assert asyncio.run(shell("echo one; echo two >&2; exit 3")) == "exit 3\none\ntwo\n"
    assert workspace.effects() == ['shell {"command":"echo one; echo two >&2; exit 3"}']


def test_a_command_that_is_stopped_is_gone_with_all_that_it_started(workspace: Workspace) -> None:
    noted = workspace.files / "pid"

    async def story() -> ProcessId:
        running = asyncio.create_task(shell("sleep 600 & echo $! > pid; wait"))
        while not (noted.exists() and noted.read_text().strip()):
            await asyncio.sleep(0.005)
        started = process_of(int(noted.read_text()))
        assert started is not None
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return started

    assert not wait_until_gone([asyncio.run(story())], 30)  # the kernel kills it when it comes to run


@pytest.mark.parametrize("path", ["../effects.jsonl", "/etc/passwd", "shelf/../../x", ".", "", "a\0b", "out/x"])
def test_a_path_that_leads_out_of_the_workspace_is_refused(workspace: Workspace, path: str) -> None:
    (workspace.files / "out").symlink_to("/etc")
    with pytest.raises(WorkspaceError, match=r"is outside of the workspace|is no path"):
        asyncio.run(read_file(path))
    with pytest.raises(WorkspaceError, match=r"is outside of the workspace|is no path"):
        asyncio.run(write_file(path, "x"))
    assert workspace.effects() == []


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: read_file("shelf/nothing.txt"), "cannot read 'shelf/nothing.txt': No such file"),
        (lambda: write_file("shelf", "x"), "cannot write 'shelf': Is a directory"),
        (lambda: search("("), "is no regular expression"),
    ],
)
def test_a_model_is_told_why_a_tool_cannot(
    workspace: Workspace, call: Callable[[], Awaitable[str]], problem: str
) -> None:
    async def story() -> str:
        return await call()

    with pytest.raises(WorkspaceError, match=problem.replace("(", r"\(")):
        asyncio.run(story())


def test_without_a_workspace_a_tool_says_which_variable_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PLACE, raising=False)
    with pytest.raises(WorkspaceError, match=PLACE):
        asyncio.run(read_file("x"))


def test_the_tools_have_schemas_and_declare_their_effects() -> None:
    tools = Toolset(TOOLS)
    assert {each.name: each.effect for each in tools} == {
        "read_file": "pure",
        "search": "pure",
        "write_file": "once",
        "shell": "once",
    }
    assert all(spec.description and spec.parameters["required"] for spec in tools.specs())
    assert all(each.reference() for each in tools)


def test_a_tool_takes_as_long_as_it_is_told_to(workspace: Workspace) -> None:
    workspace.set_pace(read_file=90_000)
    loop = VirtualLoop()
    loop.run_until_complete(read_file("shelf/000.txt"))
    assert loop.time() == 90
    loop.close()


# questions and answers


def expected(workspace: Workspace, number: int, *, with_shell: bool = False) -> str:
    """The whole final answer to a question, from the files alone."""
    question = workspace.question(number, with_shell=with_shell)
    return conclusion(question, [workspace.plain_result(call) for call in question.calls])


def test_the_same_seed_furnishes_the_same_workspace_and_asks_the_same(tmp_path: Path) -> None:
    first, second = (Workspace.create(tmp_path / name, seed=3) for name in "ab")
    assert expected(first, 4) == expected(second, 4)
    assert first.question(4) == second.question(4)
    assert expected(Workspace.create(tmp_path / "c", seed=5), 4) != expected(first, 4)


def test_no_two_questions_share_an_effect_and_none_contains_another(workspace: Workspace) -> None:
    questions = [workspace.question(number, with_shell=True) for number in range(30)]
    effects = [call.key for each in questions for call in each.calls if call.name in ("write_file", "shell")]
    assert len(effects) == len(set(effects)) == 60
    assert not any(one.asks in other.asks for one in questions for other in questions if one is not other)


async def ask(client: AsyncOpenAI, text: str) -> str:
    """A client that repeats a request until its answer is whole, and executes the tools of a whole answer only."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    tools = {function.__name__: function for function in TOOLS}
    for _ in range(20):
        heard = await listen(client, messages)
        if heard.finish == "stop":
            return heard.text
        if heard.finish == "tool_calls":
            asked = [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in heard.calls]
            messages += with_results(heard, [await tools[name](**arguments) for name, arguments in asked])
    raise AssertionError("no answer after 20 requests")


def ask_simulated(provider: SimProvider, text: str) -> str:
    async def main() -> str:
        client = AsyncOpenAI(base_url=SIM_URL, api_key="scripted", max_retries=0, http_client=provider.client())
        async with client:
            return await ask(client, text)

    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def test_wherever_a_request_breaks_a_careful_client_gets_the_whole_answer_and_every_effect_once(
    workspace: Workspace,
) -> None:
    questions = [workspace.question(number) for number in range(40)]
    provider = SimProvider(Script(questions=tuple(questions)))
    answers = {0: ask_simulated(provider, questions[0].asks)}
    sizes = {record.number: len(record.sizes) for record in provider.log()}
    places = [{number: fault} for number, count in sizes.items() for fault in list(every_place([1] * count))[::9]]
    for number, faults in enumerate(places[:39], 1):
        provider.set_plan(FaultPlan.at(faults))
        answers[number] = ask_simulated(provider, questions[number].asks)
    assert answers == {number: expected(workspace, number) for number in answers}
    writes = [call for question in questions for call in question.calls if call.name == "write_file"]
    assert Counter(workspace.effects()) == Counter(call.key for call in writes)
    assert all(workspace.has_written(**call.arguments) for call in writes)
    assert provider.counters().illegal == 0


def test_with_a_shell_the_answer_is_known_too(workspace: Workspace) -> None:
    question = workspace.question(0, with_shell=True)
    script = Script(questions=(question,))
    messages: list[dict[str, Any]] = [{"role": "user", "content": question.asks}]
    results = {
        "read_file": lambda given: workspace.read(given["path"]),
        "search": lambda given: workspace.search(given["pattern"]),
        "write_file": lambda given: workspace.write(given["path"], given["text"]),
        "shell": lambda given: asyncio.run(shell(**given)),
    }
    for call in question.calls:
        messages.append(
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": call.key, "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
                ],
            }
        )
        messages.append({"role": "tool", "tool_call_id": call.key, "content": results[call.name](call.arguments)})
    text = "".join(event.text for event in answer(script, messages, 1) if isinstance(event, Text))
    assert text == expected(workspace, 0, with_shell=True) != expected(workspace, 0)
