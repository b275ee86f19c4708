"""Every example of the READMEs is played, in the simulated world, and does what is said of it."""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import json
import re
import runpy
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from zoneinfo import ZoneInfo

import httpx
import pytest

from perdure import actors
from perdure.actors import Agent, Client, Messenger, Telegram
from perdure.actors.messenger.telegram import SECRET_HEADER
from perdure.actors.sim_world.sim_ports import EPOCH_MS
from perdure.gateway import Gateway
from perdure.ledger import Secret, taken_out
from perdure.policies import Answerer
from perdure.scenarios.simulated_telegram import BotApi, SimWire
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.real import real_gateway
from tests.kit import played
from tests.readmes.pages import GATEWAY, GUIDE, LIMITS, PAGES, PYTHON, Page, example, module_of, modules

DAY_MS = 86_400_000.0
PAIRS = [(page, block) for page in PAGES.values() for block in page.blocks("python")]
OUTPUTS = [block for page in PAGES.values() for block in page.blocks("text") if block.startswith("$ python ")]
# The blocks that belong to no module, by their first lines: each is played by a test below.
FRAGMENTS = {
    (GUIDE.path, 'async with Runtime(data="./perdure-data") as runtime:'),
    (LIMITS.path, "from perdure import Limits, Runtime"),
}


@pytest.fixture(scope="module", autouse=True)
def _modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with modules(tmp_path_factory.mktemp("readmes")):
        yield


def play(story: Callable[[Client], Awaitable[None]]) -> None:
    with Laboratory(seed=1) as laboratory:
        laboratory.play(story, timeout_ms=DAY_MS)
        laboratory.settle()
    laboratory.simulation.raise_errors()


def fragment(page: Page, first: str) -> str:
    """A block that belongs to no module."""
    assert (page.path, first) in FRAGMENTS
    (found,) = [block for block in page.blocks("python") if block.startswith(first + "\n")]
    return found


async def execute(code: str, **names: Any) -> dict[str, Any]:
    """Execute a block that may await, and give back its names."""
    compiled = compile(code, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    done = eval(compiled, names)  # noqa: S307 - it is our own text
    if inspect.isawaitable(done):
        await done
    return names


class SimulatedRuntime:
    """What a script opens here instead of a `Runtime`: the same calls, into one simulated world."""

    def __init__(self, laboratory: Laboratory) -> None:
        self.laboratory = laboratory
        self.agent = laboratory.agent

    def run(self, *asked: Any, **options: Any) -> Any:
        return self.laboratory.play(lambda client: client.run(*asked, **options))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize(
    ("page", "block"), PAIRS, ids=[f"{page.path}: {block.partition(chr(10))[0]}" for page, block in PAIRS]
)
def test_every_example_is_python_and_belongs_to_a_module_or_is_played_alone(page: Page, block: str) -> None:
    compile(block, page.path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    assert module_of(block) or (page.path, block.partition("\n")[0]) in FRAGMENTS


def test_a_module_of_the_examples_stands_on_one_page() -> None:
    homes: dict[str, set[str]] = {}
    for page, block in PAIRS:
        if name := module_of(block):
            homes.setdefault(name, set()).add(page.path)
    assert {name: pages for name, pages in homes.items() if len(pages) > 1} == {}


def test_every_module_is_played_here() -> None:
    played = set(builtins.filter(None, map(module_of, PYTHON)))
    assert played == {
        "bot",
        "bureau",
        "conversation",
        "copy_desk",
        "elsewhere",
        "following",
        "front_page",
        "gate",
        "helpdesk",
        "library",
        "my_agents",
        "office",
        "payments",
        "planner",
        "press",
        "printing",
        "refunds",
        "research",
        "shelf",
        "shop",
        "test_research",
        "till",
        "tools",
        "train",
    }


# ---------------------------------------------------------------- scripts


@pytest.mark.parametrize("output", OUTPUTS, ids=lambda output: output.partition("\n")[0])
def test_a_script_prints_what_is_shown(
    output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, _, shown = output.partition("\n")
    module = example(command.removeprefix("$ python ").removesuffix(".py"))
    assert module.__file__ is not None
    with Laboratory(seed=1) as laboratory:
        monkeypatch.setattr("perdure.Runtime", lambda data, address=None: SimulatedRuntime(laboratory))
        capsys.readouterr()
        runpy.run_path(module.__file__, run_name="__main__")
        laboratory.settle()
    assert capsys.readouterr().out == shown


def test_every_script_shows_its_output() -> None:
    scripts = {module_of(block) for block in PYTHON if '__name__ == "__main__"' in block}
    assert scripts == {re.match(r"\$ python (\w+)", output)[1] for output in OUTPUTS}  # type: ignore[index]


# ---------------------------------------------------------------- the guide


@played(play)
async def test_the_first_agent_is_called_and_run_from_async_code(client: Client, /) -> None:
    library = example("library")
    opened = Opened(client)
    names = await execute(
        fragment(GUIDE, 'async with Runtime(data="./perdure-data") as runtime:'),
        **{**vars(library), "Runtime": lambda data: opened if data else None},
    )
    assert names["words"] == 6
    assert names["result"].output == 4


def test_the_editor_waits_for_its_review_and_its_messages_and_until_monday(monkeypatch: pytest.MonkeyPatch) -> None:
    soon = datetime.fromtimestamp(EPOCH_MS / 1000, ZoneInfo("Europe/Berlin")) + timedelta(minutes=5)
    monkeypatch.setattr(example("press"), "MONDAY", soon)

    async def story(client: Client) -> None:
        run_id = await client.agent(example("bureau").Bureau, "bureau").order("HTTP/3")
        await asyncio.sleep(120)
        assert (await client.ask("show", run_id))["waits"]["until_ms"] == soon.timestamp() * 1000
        assert sum(host["tenants"] for host in (await client.ask("ps"))["hosts"]) == 0
        await asyncio.sleep(200)
        assert taken_out((await client.ask("show", run_id))["output"]) == "HTTP/3, a draft, read, shorter"

    play(story)


@played(play)
async def test_the_front_page_begins_when_its_sources_are_there_and_takes_the_first_two(client: Client, /) -> None:
    done = await client.run(example("front_page").FrontPage, ["ray", "duckdb", "temporal"])
    article, *quickest = done.output
    assert article == "News: notes on duckdb, from ray.org"
    assert len(set(quickest) & {f"notes on {topic}" for topic in ("ray", "duckdb", "temporal")}) == 2


@played(play)
async def test_the_gate_is_opened_by_whoever_answers_and_stays_shut_if_nobody_does(client: Client, /) -> None:
    gate = example("gate").Gate
    for run_id in ("gate", "alone"):
        await client.start(gate, run_id=run_id)
    await asyncio.sleep(60)
    await client.answer("gate:1", True, Answerer("ada", is_operator=True), "cli")
    assert (await client.run(gate, run_id="gate")).output == "open"
    assert (await client.run(gate, run_id="alone")).output == "shut"


@played(play)
async def test_the_printing_gives_up_and_cancels_what_it_has_booked(client: Client, /) -> None:
    done = await client.run(example("printing").Printing, "Bugle", run_id="bugle")
    assert (done.status, "out of paper" in done.error) == ("error", True)
    assert (await client.agent(example("printing").Printing, "bugle")._perdure_state()) == {"booked": None}  # noqa: SLF001


def test_the_shelf_keeps_what_was_put_and_replaces_it_as_a_whole() -> None:
    shelf = example("shelf").Shelf
    with Laboratory(seed=1) as laboratory:
        handle = laboratory.agent(shelf, "novels")
        handle.put("Hamlet", "To be or not to be.")
        handle.put("Emma", "Handsome, clever, and rich.")
        assert handle.replace("Persuasion", "Sir Walter Elliot, of Kellynch Hall.") == 1
        laboratory.settle()


class Opened:
    """A runtime that async code opens, over a client of the simulated world."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __aenter__(self) -> Client:
        return self.client

    async def __aexit__(self, *_: object) -> None:
        pass


@played(play)
async def test_the_office_ships_once_and_books_once(client: Client, /) -> None:
    office = example("office")

    async def desk(method: str, *args: Any) -> Any:
        return await client.call(office.Office, "main", method, args, {})

    first = await desk("order", "o-1", "Ada")
    assert await desk("order", "o-1", "Ada") == first
    await asyncio.sleep(10)
    account = client.agent(office.Account, "Ada", of=client.agent(office.Office, "main"))
    assert await account.book(0) == 1


def test_a_key_is_struck_out_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    payments = example("payments")
    monkeypatch.setenv("STRIPE_KEY", "sk_test_51HxyzA")

    async def story(client: Client) -> None:
        asked = await client.run(payments.Payment, Secret("STRIPE_KEY"))
        assert asked.output == "paid with ***************"

    play(story)


# ---------------------------------------------------------------- the other pages


def test_the_bot_can_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOT_TOKEN", "1:token-of-a-bot")
    monkeypatch.setenv("WEBHOOK_SECRET", "only-for-tests")
    bot = example("bot")
    (messenger,) = bot.Bot.messengers()
    assert messenger.webhook_path == "/messengers/telegram/webhook"
    assert actors.messenger_app(actors.Runtime("unused"), bot.Bot).routes


def test_the_desk_asks_in_its_thread_and_a_press_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, telegram = example("copy_desk"), BotApi()
    bot = Telegram("1:token-of-a-bot", secret_token="only-for-tests", wire=partial(SimWire, telegram))  # noqa: S106 - of no bot
    monkeypatch.setattr(desk.CopyDesk, "messengers", lambda: [Messenger(id="telegram", adapter=bot)])

    async def story(client: Client) -> None:
        await client.start(desk.Proof, run_id="proof")
        while not telegram.messages:
            await asyncio.sleep(1)
        (message,) = telegram.messages.values()
        assert (message.chat_id, message.text) == (-1001, "Print it?")
        app = actors.messenger_app(client, desk.CopyDesk)
        async with httpx.AsyncClient(base_url="http://bot.invalid", transport=httpx.ASGITransport(app)) as webhooks:
            update = telegram.press(message, "Yes", "Ada", 7)
            headers = {SECRET_HEADER: "only-for-tests"}
            answer = await webhooks.post("/messengers/telegram/webhook", json=update, headers=headers)
        assert answer.status_code == 200
        assert (await client.run(desk.Proof, run_id="proof")).output is True
        await asyncio.sleep(60)
        (message,) = telegram.messages.values()
        assert (message.text, message.buttons) == ("Print it?\n\nYes, said by telegram:Ada (7).", [])

    play(story)


def test_the_agents_of_the_page_are_served_and_answer_its_requests(tmp_path: Path) -> None:
    my_agents = example("my_agents")
    assert isinstance(my_agents.app, Gateway)
    (asked,) = re.findall(r"curl -d '(\{.*?\})'", GATEWAY.text)
    place = str(Path(str(my_agents.__file__)).parent)
    with real_gateway(tmp_path, ["my_agents:Reader"], paths=[place]) as gateway, httpx.Client(timeout=60) as client:
        assert client.post(f"{gateway.url}/api/runs", json=json.loads(asked)).status_code == 200
        told = client.get(f"{gateway.url}/api/runs/hamlet/events").text
    assert "event: end" in told


def test_a_program_elsewhere_asks_a_gateway(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = example("elsewhere")
    place = str(Path(str(elsewhere.__file__)).parent)
    with real_gateway(tmp_path, ["library:Reader"], paths=[place]) as gateway:
        assert elsewhere.count(gateway.url, "to be or not to be") == 6
    assert capsys.readouterr().out == "0 started\n1 finished\n"


def test_a_program_elsewhere_talks_with_a_chat_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = example("conversation")
    place = str(Path(str(conversation.__file__)).parent)
    with real_gateway(tmp_path, ["following:Guide"], paths=[place]) as gateway:
        assert conversation.ask(gateway.url, "Where to?") == "Turn left."
    assert capsys.readouterr().out == "Turn left. (completed)\n"


def test_the_tools_are_offered_over_mcp() -> None:
    tools = example("tools")
    (offer,) = actors.offers_of(tools.app.mcp_tools).values()
    assert (offer.name, list(offer.parameters["properties"])) == ("importer", ["rows"])


@played(play)
async def test_the_parents_that_wait_get_the_results(client: Client, /) -> None:
    research = example("research")
    topics = [research.Topic(title="long", pages=9), research.Topic(title="short", pages=1)]
    assert (await client.run(research.Survey, topics, run_id="survey")).output == 1_000


@played(play)
async def test_the_parent_that_does_not_wait_is_told(client: Client, /) -> None:
    research = example("research")
    topics = [research.Topic(title="HTTP/3"), research.Topic(title="QUIC", pages=100_000)]

    async def desk(method: str, *args: Any) -> Any:
        return await client.call(research.Desk, "desk", method, args, {})

    assert await desk("order", topics) == ["notes on HTTP/3", "notes on QUIC"]
    while not await desk("words"):
        await asyncio.sleep(1)
    assert await desk("words") == 200
    await client.ask("cancel", "notes on QUIC", None, "")
    await asyncio.sleep(60)
    assert (await client.ask("audit"))["delivered"] == 3, "one milestone and two ends"


def test_the_budget_of_the_example_ends_a_child_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    research = example("research")

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


def test_the_tests_of_the_example_pass_in_bad_weather() -> None:
    example("test_research").test_a_desk_counts_the_words_of_its_notes()
    example("test_research").test_research_survives_bad_weather()


@pytest.mark.long
def test_the_tests_of_the_example_pass_wherever_death_strikes() -> None:
    example("test_research").test_research_survives_a_death_at_every_place()


def test_the_tests_of_the_example_are_all_played_here() -> None:
    found = {name for name in vars(example("test_research")) if name.startswith("test_")}
    assert found == {
        "test_a_desk_counts_the_words_of_its_notes",
        "test_research_survives_bad_weather",
        "test_research_survives_a_death_at_every_place",
    }


def test_a_caller_may_follow_a_turn_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """The loop of the page, with what it prints."""
    module = example("following")
    with Laboratory(1) as laboratory:
        printer = module.Printer()
        result = laboratory.play(
            lambda client: client.call(module.Guide, "bob", "chat", ("Where to?", printer), {"request_id": "way"})
        )
    assert result.ok
    assert capsys.readouterr().out == "Turn left."


def test_the_helpdesk_looks_up_packs_and_answers() -> None:
    """The chat agent of the README, with the model that it names: that one calls every tool."""
    helpdesk = example("helpdesk").Helpdesk
    with Laboratory(1) as laboratory:
        result = laboratory.play(lambda client: client.call(helpdesk, "alice", "chat", ("Where is order 17?",), {}))
        laboratory.settle()
    assert result.ok
    outputs = [part["output"] for part in result.message["parts"] if "output" in part]
    assert len(outputs) == 2
    assert outputs[0].endswith("was sent yesterday")
    assert outputs[1].startswith("packed ")


def test_the_limits_of_the_example_are_limits() -> None:
    names = asyncio.run(execute(fragment(LIMITS, "from perdure import Limits, Runtime")))
    assert (names["runtime"].limits.hosts_max, names["runtime"].limits.attempts_max) == (16, 3)
