"""The workshop: its tools do what they say and stay inside, and answers and effects that are not as they must be are found out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from perdure.actors.chat.toolset import Toolset
from perdure.actors.sim_world.virtual_loop import VirtualLoop
from perdure.scenarios.provider.faults import FaultPlan, every_place
from perdure.scenarios.provider.script import answer
from perdure.scenarios.provider.sim import SIM_URL, SimProvider
from perdure.scenarios.stories.workshop import (
    PLACE,
    TOOLS,
    Workshop,
    WorkshopError,
    read_file,
    search,
    shell,
    write_file,
)
from tests.scenarios.listening import listen, with_results


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    workshop = Workshop.create(tmp_path / "workshop", seed=7)
    for name, value in workshop.environment.items():
        monkeypatch.setenv(name, value)
    return workshop


# the tools


def test_a_file_that_is_written_can_be_read_and_its_effect_is_noted_once(workshop: Workshop) -> None:
    told = asyncio.run(write_file("reports/a.txt", "élan"))
    assert told == "wrote 4 characters to reports/a.txt"
    assert asyncio.run(read_file("reports/a.txt")) == "élan"
    (effect,) = workshop.effects()
    assert effect.key == 'write_file {"path":"reports/a.txt","text":"élan"}'


def test_a_search_names_every_line_that_matches(workshop: Workshop) -> None:
    found = asyncio.run(search("kiln.*∎")).splitlines()
    plain = [
        f"shelf/{path.name}:{number}: {line}"
        for path in sorted((workshop.files / "shelf").glob("*.txt"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if "∎" in line.partition("kiln")[2]
    ]
    assert plain
    assert found == [f"{len(plain)} lines", *plain]


def test_a_command_says_how_it_ended_and_what_it_printed(workshop: Workshop) -> None:
    assert asyncio.run(shell("echo one; echo two >&2; exit 3")) == "exit 3\none\ntwo\n"
    assert [effect.key for effect in workshop.effects()] == ['shell {"command":"echo one; echo two >&2; exit 3"}']


def test_a_command_that_is_stopped_is_gone_with_all_that_it_started(workshop: Workshop) -> None:
    noted = workshop.files / "pid"

    async def story() -> None:
        running = asyncio.create_task(shell("sleep 600 & echo $! > pid; wait"))
        while not (noted.exists() and noted.read_text().strip()):
            await asyncio.sleep(0.005)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(story())
    status = Path(f"/proc/{noted.read_text().strip()}/stat")
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] in "ZX"


@pytest.mark.parametrize("path", ["../effects.jsonl", "/etc/passwd", "shelf/../../x", ".", "", "a\0b", "out/x"])
def test_a_path_that_leads_out_of_the_workshop_is_refused(workshop: Workshop, path: str) -> None:
    (workshop.files / "out").symlink_to("/etc")
    with pytest.raises(WorkshopError, match=r"is outside of the workshop|is no path"):
        asyncio.run(read_file(path))
    with pytest.raises(WorkshopError, match=r"is outside of the workshop|is no path"):
        asyncio.run(write_file(path, "x"))
    assert workshop.effects() == []


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: read_file("shelf/nothing.txt"), "cannot read 'shelf/nothing.txt': No such file"),
        (lambda: write_file("shelf", "x"), "cannot write 'shelf': Is a directory"),
        (lambda: search("("), "is no regular expression"),
    ],
)
def test_a_model_is_told_why_a_tool_cannot(
    workshop: Workshop, call: Callable[[], Awaitable[str]], problem: str
) -> None:
    async def story() -> str:
        return await call()

    with pytest.raises(WorkshopError, match=problem.replace("(", r"\(")):
        asyncio.run(story())


def test_without_a_workshop_a_tool_says_which_variable_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PLACE, raising=False)
    with pytest.raises(WorkshopError, match=PLACE):
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


def test_a_tool_takes_as_long_as_it_is_told_to(workshop: Workshop) -> None:
    workshop.set_pace(read_file=90_000)
    loop = VirtualLoop()
    loop.run_until_complete(read_file("shelf/000.txt"))
    assert loop.time() == 90
    loop.close()


# questions and answers


def test_the_same_seed_furnishes_the_same_workshop_and_asks_the_same(tmp_path: Path) -> None:
    first, second = (Workshop.create(tmp_path / name, seed=3) for name in "ab")
    assert first.expected(4) == second.expected(4)
    assert first.question(4) == second.question(4)
    assert Workshop.create(tmp_path / "c", seed=5).expected(4) != first.expected(4)


def test_no_two_questions_share_an_effect_and_none_contains_another(workshop: Workshop) -> None:
    questions = [workshop.question(number, with_shell=True) for number in range(30)]
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
    workshop: Workshop,
) -> None:
    provider = SimProvider(workshop.script(questions=40))
    answers = {0: ask_simulated(provider, workshop.asks(0))}
    sizes = {record.number: len(record.sizes) for record in provider.log()}
    places = [{number: fault} for number, count in sizes.items() for fault in list(every_place([1] * count))[::9]]
    for number, faults in enumerate(places[:39], 1):
        provider.set_plan(FaultPlan.at(faults))
        answers[number] = ask_simulated(provider, workshop.asks(number))
    assert list(workshop.wrong_answers(answers)) == []
    assert list(workshop.wrong_effects(answers)) == []
    assert provider.counters().illegal == 0


def test_with_a_shell_the_answer_is_known_too(workshop: Workshop) -> None:
    script = workshop.script(questions=1, with_shell=True)
    messages: list[dict[str, Any]] = [{"role": "user", "content": workshop.asks(0)}]
    results = {
        "read_file": lambda given: workshop.read(given["path"]),
        "search": lambda given: workshop.search(given["pattern"]),
        "write_file": lambda given: workshop.write(given["path"], given["text"]),
        "shell": lambda given: asyncio.run(shell(**given)),
    }
    for call in workshop.question(0, with_shell=True).calls:
        messages.append(
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": call.key, "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
                ],
            }
        )
        messages.append({"role": "tool", "tool_call_id": call.key, "content": results[call.name](call.arguments)})
    text = "".join(event.text for event in answer(script, messages, 1) if event.kind == "text")
    assert list(workshop.wrong_answers({0: text}, with_shell=True)) == []
    assert list(workshop.wrong_answers({0: text})) != []


def test_what_was_doubled_lost_or_made_up_is_found_out(workshop: Workshop) -> None:
    doubled, foreign = workshop.question(0), workshop.question(9)
    for question in (doubled, doubled, foreign):
        (write,) = [call for call in question.calls if call.name == "write_file"]
        asyncio.run(write_file(**write.arguments))
    wrong = list(workshop.wrong_effects([0, 1]))
    assert any("reports/00000.txt" in each and each.endswith("began 2 times") for each in wrong)
    assert any("reports/00001.txt" in each and each.endswith("began 0 times") for each in wrong)
    assert "reports/00001.txt does not hold what was written to it" in wrong
    assert any("reports/00009.txt" in each and each.endswith("no question asks for it") for each in wrong)
    assert list(workshop.wrong_answers({0: "Done."})) == ["the answer to question 0 is not whole: 'Done.'"]
