"""What the README says is so: its examples run, and what it names exists."""

from __future__ import annotations

import ast
import asyncio
import builtins
import importlib
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main

from perdure import actors, ledger, policies
from perdure.actors import (
    Agent,
    ChatAgent,
    ChatRecovery,
    Client,
    Detached,
    KillPoint,
    RunContext,
    RunInfo,
    RunResult,
    Runtime,
)
from perdure.ledger import InterruptedReason
from perdure.policies import Limits
from perdure.scenarios.bench import bench
from perdure.scenarios.cli import app
from perdure.scenarios.testing import laboratory as simulation
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import Listener
from tests.tidy import ROOT

README = (ROOT / "README.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r"\A# (\w+\.py)\n")
CODE = re.compile(r"`([^`]+)`")
PROSE = " ".join(BLOCK.sub("", README).split())
PYTHON = [text for language, text in BLOCK.findall(README) if language == "python"]
SHELL = "".join(text for language, text in BLOCK.findall(README) if language == "sh")
SPOKEN = [*CODE.findall(PROSE), *PYTHON]
COMMANDS = typer.main.get_command(app)
DAY_MS = 86_400_000.0


def section(title: str) -> str:
    """The text under a heading, up to the next one of its kind."""
    _, _, rest = README.partition(f"\n## {title}\n")
    assert rest, f"there is no section {title!r}"
    return rest.partition("\n## ")[0]


def rows(text: str, *, table: int = 0) -> list[list[str]]:
    """The cells of the rows of a table, without its head."""
    tables = re.findall(r"(?:^\|.*\|\n)+", text + "\n", re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[table].splitlines()[2:]]


# ---------------------------------------------------------------- the examples


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], ModuleType]]:
    """The files of the README, as a reader would put them together; asked for by the name of their module."""
    place = tmp_path_factory.mktemp("readme")
    for block in PYTHON:
        if title := TITLE.match(block):
            with (place / title[1]).open("a", encoding="utf-8") as file:
                file.write(block)
    sys.path.insert(0, str(place))
    yield importlib.import_module
    sys.path.remove(str(place))
    for path in place.glob("*.py"):
        sys.modules.pop(path.stem, None)


def play(story: Callable[[Client], Awaitable[None]]) -> None:
    with Laboratory(seed=1) as laboratory:
        laboratory.run(story, timeout_ms=DAY_MS)
        laboratory.settle()
    laboratory.simulation.raise_errors()


@pytest.mark.parametrize("block", PYTHON, ids=[block.partition("\n")[0] for block in PYTHON])
def test_every_example_is_python(block: str) -> None:
    compile(block, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def test_the_first_agent_counts_six_words(examples: Callable[[str], ModuleType]) -> None:
    library = examples("library")

    async def story(client: Client) -> None:
        assert await client.call(library.Librarian, "home", "count", (["to be or not", "to be"],), {}) == 6
        assert (await client.run(library.Reader, "to be or not", run_id="hamlet")).output == 4

    play(story)


def test_the_office_ships_once_books_once_and_asks_later(examples: Callable[[str], ModuleType]) -> None:
    office = examples("office")

    async def story(client: Client) -> None:
        async def desk(method: str, *args: Any) -> Any:
            return await client.call(office.Office, "main", method, args, {})

        first = await desk("order", "o-1", "Ada")
        assert await desk("order", "o-1", "Ada") == first
        await asyncio.sleep(700)
        account = client.agent(office.Account, "Ada", of=client.agent(office.Office, "main"))
        assert await account.book(0) == 1

    play(story)


def test_the_bot_can_be_served(examples: Callable[[str], ModuleType]) -> None:
    bot = examples("bot")
    (messenger,) = bot.Bot.messengers()
    assert messenger.webhook_path == "/messengers/telegram/webhook"
    assert actors.messenger_app(actors.Runtime("unused"), bot.Bot).routes


def test_the_parents_that_wait_get_the_results(examples: Callable[[str], ModuleType]) -> None:
    research = examples("research")
    topics = [research.Topic(title="long", pages=9), research.Topic(title="short", pages=1)]

    async def story(client: Client) -> None:
        assert (await client.run(research.Survey, topics, run_id="survey")).output == 1_000
        assert (await client.run(research.Race, topics, run_id="race")).output == ["short", "long"]

    play(story)


def test_the_parent_that_does_not_wait_is_told(examples: Callable[[str], ModuleType]) -> None:
    research = examples("research")
    topics = [research.Topic(title="HTTP/3"), research.Topic(title="QUIC", pages=100_000)]

    async def story(client: Client) -> None:
        async def desk(method: str, *args: Any) -> Any:
            return await client.call(research.Desk, "desk", method, args, {})

        assert await desk("order", topics) == ["notes on HTTP/3", "notes on QUIC"]
        while not await desk("words"):
            await asyncio.sleep(1)
        assert await desk("words") == 200
        assert await desk("stop", "notes on nothing") is None
        assert await desk("stop", "notes on HTTP/3") == "completed"
        assert await desk("stop", "notes on QUIC") == "aborted"
        await asyncio.sleep(60)
        assert await client.ask("inspect", "notes on HTTP/3") is not None
        assert (await client.ask("audit"))["delivered"] == 3, "one milestone and two ends"
        assert await desk("tidy") == 2
        assert await client.ask("inspect", "notes on HTTP/3") is None

    play(story)


def test_the_budget_of_the_example_ends_a_child_that_hangs(
    examples: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    research = examples("research")

    async def read_for_ever(_agent: Agent) -> None:
        await asyncio.Event().wait()

    async def story(client: Client) -> None:
        (run_id,) = await client.call(research.Desk, "desk", "order", ([research.Topic(title="QUIC")],), {})
        await asyncio.sleep(3_500)
        assert (await client.ask("inspect", run_id))["status"] == "running"
        await asyncio.sleep(200)
        told = await client.ask("inspect", run_id)
        assert (told["status"], told["reason"], told["child_still_running"]) == (
            "interrupted",
            "budget-exceeded",
            False,
        )
        assert told["deliveries"] == {"give-up": "delivered"}

    monkeypatch.setattr(research.Researcher, "read", read_for_ever)

    play(story)


def test_the_tests_of_the_example_pass_in_bad_weather(examples: Callable[[str], ModuleType]) -> None:
    examples("test_research").test_a_desk_counts_the_words_of_its_notes()
    examples("test_research").test_research_survives_bad_weather()


@pytest.mark.long
def test_the_tests_of_the_example_pass_wherever_death_strikes(examples: Callable[[str], ModuleType]) -> None:
    examples("test_research").test_research_survives_a_death_at_every_place()


def test_the_tests_of_the_example_are_all_played_here(examples: Callable[[str], ModuleType]) -> None:
    found = {name for name in vars(examples("test_research")) if name.startswith("test_")}
    assert found == {
        "test_a_desk_counts_the_words_of_its_notes",
        "test_research_survives_bad_weather",
        "test_research_survives_a_death_at_every_place",
    }


def test_the_helpdesk_looks_up_packs_and_answers(examples: Callable[[str], ModuleType]) -> None:
    """The chat agent of the README, with the model that it names: that one calls every tool."""
    helpdesk = examples("helpdesk").Helpdesk
    with Laboratory(1) as laboratory:
        result = laboratory.run(lambda client: client.call(helpdesk, "alice", "chat", ("Where is order 17?",), {}))
        laboratory.settle()
    assert result.ok
    outputs = [part["output"] for part in result.message["parts"] if "output" in part]
    assert len(outputs) == 2
    assert outputs[0].endswith("was sent yesterday")
    assert outputs[1].startswith("packed ")


# ---------------------------------------------------------------- what is named exists


def has(owner: type, name: str) -> bool:
    return hasattr(owner, name) or name in getattr(owner, "__annotations__", ())


OWNERS: dict[str, tuple[type, ...]] = {
    "runtime": (Runtime,),
    "run": (RunContext, RunInfo),
    "result": (RunResult,),
    "self": (Agent, ChatAgent),
}


@pytest.mark.parametrize("owner", OWNERS)
def test_what_is_said_of_the_runtime_of_runs_and_of_agents_exists(owner: str) -> None:
    own = set(re.findall(r"^    (?:async )?def (\w+)", "".join(PYTHON), re.MULTILINE)) if owner == "self" else set()
    instance = {"run_id", "attempt", "parent_tool_call_id"} if owner == "run" else set()
    spoken = {name for text in SPOKEN for name in re.findall(rf"(?<![\w.]){owner}\.(\w+)", text)}
    assert spoken, "the pattern finds nothing any more"
    assert not [name for name in spoken - own - instance if not any(has(kind, name) for kind in OWNERS[owner])]


def test_methods_and_errors_that_are_named_alone_exist() -> None:
    homes = (
        Agent,
        ChatAgent,
        ChatRecovery,
        Listener,
        actors.MessengerAgent,
        RunContext,
        Detached,
        Limits,
        Runtime,
        actors,
        ledger,
        policies,
        simulation,
    )
    words = {word.partition("(")[0] for word in CODE.findall(PROSE)}
    words = {word for word in words if re.fullmatch(r"[A-Z]\w*[a-z]\w*|(?:on|agent_tool|detached)_\w+", word)}
    own = {*re.findall(r"(?:class|def) (\w+)", "".join(PYTHON)), *dir(builtins)}
    assert {"StorageConflict", "OutcomeUnknown", "on_progress", "detached_max_budget_ms"} <= words
    unknown = [word for word in words - own if not any(hasattr(home, word) for home in homes)]
    assert not [word for word in unknown if not has(Detached, word)]


def test_the_table_of_guarantees_names_every_kill_point_and_no_other() -> None:
    named = re.findall(r"`([A-Z][A-Z_]+)`", section("What you may rely on").partition("Three sentences")[0])
    assert sorted(named) == sorted(point.name for point in KillPoint), "each stands in one row"


def test_the_rows_of_guarantees_are_complete() -> None:
    assert all(len(row) == 5 and row[0] and row[1] and row[2] for row in rows(section("What you may rely on")))


def test_every_reason_of_an_interruption_has_a_row() -> None:
    reasons = [row[0].strip("`") for row in rows(section("Interrupted runs"))]
    assert set(reasons) == set(InterruptedReason)


def test_every_patience_is_named_as_it_is_set_and_has_its_default() -> None:
    table = {row[0]: row[1:] for row in rows(section("Interrupted runs"), table=1)}
    limits = Limits()
    hour = 3_600_000
    assert limits.detached_max_budget_ms == 24 * hour
    assert limits.detached_no_progress_budget_ms == hour
    assert limits.reattach_no_progress_ms == hour / 30
    assert limits.reattach_window_ms == policies.INFINITY
    assert [row[1] for row in table.values()] == ["24 h", "1 h", "2 min", "infinity"]


def test_limits_that_are_named_exist_and_have_the_value_that_is_said() -> None:
    known = {field.name: getattr(Limits(), field.name) for field in fields(Limits)}
    endings = ("_ms", "_max")
    elsewhere = (
        {each.name for each in fields(Detached)}
        | set(dir(ChatAgent))
        | {each.name for each in fields(ChatRecovery)}
        | set(vars(ledger.Overloaded(1, 1, 1)))
    )
    named = {word for word in CODE.findall(PROSE) if re.fullmatch(r"[a-z_]+", word) and word.endswith(endings)}
    assert named - elsewhere <= known.keys()
    said = re.findall(r"`([a-z_]+)` \(([\d,]+)\)", PROSE)
    assert {name for name, _ in said} >= {"hosts_max", "pack_max", "waiting_max", "recovery_work_max"}
    assert {name: int(value.replace(",", "")) for name, value in said} == {name: known[name] for name, _ in said}
    assert known["inline_bytes_max"] == 512
    assert known["input_bytes_max"] == known["output_bytes_max"] == 4 * 1024 * 1024
    assert (known["attempts_max"], known["handler_attempts_max"], known["group_max"]) == (5, 8, 256)
    assert known["idle_ms"] == 5_000
    assert known["progress_ms"] == 200
    assert known["heartbeat_ms"] * known["heartbeat_misses_max"] == 10_000
    assert known["orphan_ms"] == 60_000


# ---------------------------------------------------------------- commands, figures, places


def command(*words: str) -> Any:
    """The command under these words."""
    found: Any = COMMANDS
    for word in words:
        found = found.commands[word]
    return found


def test_the_table_of_commands_names_each_once() -> None:
    """Each command has a row, and instead of `run` each scenario that it can play."""
    named = [re.match(r"`perdure ((?:run )?[\w-]+)", row[0]) for row in rows(section("Commands"))]
    scenarios = [f"run {name}" for name in command("run").commands]
    assert sorted(each[1] for each in named if each) == sorted([*scenarios, *(set(command().commands) - {"run"})])


def test_the_commands_and_options_that_are_named_exist() -> None:
    lines = [*re.findall(r"`(perdure [^`]+)`", PROSE), *re.findall(r"\bperdure [a-z][^\n'#&]*", SHELL)]
    assert len(lines) > 20
    for line in lines:
        words = line.split()[1:]
        known = command(words[0])
        if words[1:] and words[1] in getattr(known, "commands", {}):
            known = known.commands[words[1]]
        options = {option for each in known.params for option in each.opts}
        assert set(re.findall(r"(?<!\S)--[a-z-]+", line)) <= options, line


@pytest.mark.parametrize("row", rows(section("Commands")), ids=lambda row: row[0])
def test_the_options_in_the_table_belong_to_their_command(row: list[str]) -> None:
    words = re.sub(r"[\[\]]", "", row[0].strip("`")).split()[1:]
    known = command(*[word for word in words if word.islower()])
    assert set(re.findall(r"--[a-z-]+", row[1])) <= {option for each in known.params for option in each.opts}


def test_every_group_of_figures_has_a_row_and_no_other_is_there() -> None:
    groups = [row[0].strip("`") for row in rows(section("Figures"))]
    assert list(dict.fromkeys(groups)) == list(bench.FIGURES)


def test_links_lead_somewhere() -> None:
    anchors = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", README, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", README):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        elif not target.startswith("https://"):
            assert (ROOT / target).exists(), target


def test_files_of_the_project_that_are_named_are_there() -> None:
    ours = {word for word in CODE.findall(PROSE) if re.fullmatch(r"[\w/]+\.(?:py|toml|yaml)", word)}
    assert {"ray_cluster.yaml", "pyproject.toml", "policies/limits.py"} <= ours
    assert not [word for word in ours if not (ROOT / word).is_file()]


def test_the_launchers_commands_are_those_of_the_configuration() -> None:
    config = (ROOT / "ray_cluster.yaml").read_text("utf-8")
    for line in SHELL.splitlines():
        if "ray_cluster.yaml" in line:
            assert line.partition("#")[0].strip() in config


def test_every_section_is_in_the_list_of_contents() -> None:
    listed = re.findall(r"^- \[(.+)\]\(#", README, re.MULTILINE)
    assert listed == re.findall(r"^## (.+)$", README, re.MULTILINE)


def test_nothing_is_said_of_how_it_was_made() -> None:
    for word in ("issue", "TODO", str(Path.home())):
        assert word.lower() not in README.lower(), word
