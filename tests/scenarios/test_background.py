"""What agents do beside their runs is seen: counted by `ps`, listed by `fibers`, `schedules` and `turns`, and shown by `inspect`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest
from pydantic_ai.models.test import TestModel

from perdure.actors import Agent, ChatAgent, Client, FiberContext, Occurrence, exposed
from perdure.actors.jobs.fiber import Fiber
from perdure.actors.runtime.inspecting import KINDS_OF_WORK, NOT_AWAKE, RECORDS_OF_WORK
from perdure.ledger import View, record_fact, restore
from perdure.ledger.facts import (
    AgentActivated,
    AgentDoomed,
    AgentForgotten,
    Fact,
    RunAborted,
    RunCleared,
    RunRequested,
    SupervisorStarted,
)
from perdure.ledger.maintenance.looking import DirectorySource, look, opened_copy
from perdure.ledger.storage.agent_storages import FileDisk
from perdure.ledger.storage.patches import MAIN, WAL, Patch, whole
from perdure.ledger.store.bucket_store import open_bucket
from perdure.policies import FiberStatus, Limits
from perdure.scenarios.commands.background import COLUMNS
from perdure.scenarios.testing.laboratory import Laboratory
from tests.kit import address
from tests.ledger.directories import file_of, lived, recorded, written
from tests.scenarios.command import perdure, perdure_json


class Office(Agent):
    """Has work of each kind, some of which fails."""

    async def on_start(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS pages(title VARCHAR, number INTEGER)")

    @exposed
    async def begin(self) -> None:
        """Begin everything."""
        self.sql("INSERT INTO pages VALUES ('one', 1), ('two', 2)")
        self.state["name"] = "Ada"
        self.start_fiber("good", self.good, fiber_id="good")
        self.start_fiber("bad", self.bad, fiber_id="bad")
        self.start_fiber("long", self.long, fiber_id="long")
        self.schedule(0, "failing", None, key="soon")
        self.schedule(86_400, "failing", None, key="tomorrow")
        self.queue("failing", None)

    async def good(self, fiber: FiberContext) -> None:
        """Ends."""

    async def bad(self, fiber: FiberContext) -> None:
        """Fails."""
        raise ValueError("a bad fiber")

    async def long(self, fiber: FiberContext) -> None:
        """Goes on."""
        await asyncio.sleep(1e6)

    def failing(self, payload: None, occurrence: Occurrence) -> None:
        """Fails each time."""
        raise LookupError("no such thing")


class Speaker(ChatAgent):
    """Its model answers."""

    model = TestModel(custom_output_text="hello")


class Silent(ChatAgent):
    """Has no model that can be asked."""

    model = "test:of a provider that is unknown"


ADA, OTHER = address(Office, "ada"), address(Office, "idle")


async def story(client: Client) -> None:
    await client.agent(Office, "ada").begin()
    assert (await client.agent(Speaker, "s").chat("hi")).text == "hello"
    assert not (await client.agent(Silent, "x").chat("hi")).ok
    await asyncio.sleep(120)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that was cut off while an agent was at work."""
    data = tmp_path_factory.mktemp("office")
    with Laboratory(1, checked=False) as laboratory:
        laboratory.disk = FileDisk(data / "agents")  # type: ignore[assignment]
        laboratory.play(story, timeout_ms=7_200_000)
        at_work = [each for host in laboratory.hosts.values() for each in host.tenants]
        assert ADA in at_work
        source = DirectorySource(data / "agents")
        (found,) = (it for it in look(source, source.places(), RECORDS_OF_WORK) if it.agent_id == ADA)
        running = {it["fiber_id"]: it["status"] for it in KINDS_OF_WORK["fibers"](found, found.incarnation)}
        assert running == {"good": "completed", "bad": "error", "long": "running"}, "it is read while it is at work"
        recorded(data, SupervisorStarted(1, asdict(Limits())), AgentActivated(ADA, found.incarnation, "h1"))
    return data


@pytest.fixture(scope="module", params=["directory", "bucket"])
def given(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """That directory, or a bucket that has what it has: a root knows of all storages but one."""
    if request.param == "directory":
        yield str(data)
        return
    place = tmp_path_factory.mktemp("bucket")
    url, source = f"file://{place}/bucket", DirectorySource(data / "agents")
    agents = [found.agent_id for found in look(source, source.places(), RECORDS_OF_WORK)]
    facts = [SupervisorStarted(1, asdict(Limits())), AgentActivated(ADA, 1, "h1")]
    with closing(open_bucket(place / "ledger", url)) as store:
        view: View = restore(store.boot())
        store.root_s = 0
        rows = [record_fact(view, fact, 1_000) for fact in facts]
        store.append(
            rows, [], [Patch("code", 0, 1, [whole("a.py", b"")]), *(carried(data, each) for each in agents[:-1])]
        )
    with closing(open_bucket(place / "ledger", url)) as store:
        store.boot()
        store.append([], [], [carried(data, each) for each in agents[-1:]])
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PERDURE_CACHE", str(place / "cache"))
        yield url


def carried(data: Path, agent: str) -> Patch:
    file = file_of(data, agent)
    files = {ending: file.with_name(file.name + ending) for ending in (MAIN, WAL)}
    return Patch(agent, 1, 1, [whole(ending, path.read_bytes()) for ending, path in files.items() if path.exists()])


def test_ps_counts_what_is_open_and_what_has_failed_and_changes_nothing(given: str, data: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (data / "agents").rglob("*")}
    told = perdure_json("ps", "--data", given)["background"]
    assert told["fibers"] == {"open": 1, "failed": 1, "all": 3}
    assert told["schedules"] == {"open": 3, "failed": 2, "all": 3}
    assert told["turns"] == {"open": 0, "failed": 1, "all": 2}
    assert (told["storages"], told["looked_at"], told["unreadable"]) == (3, 3, [])
    said = perdure("ps", "--data", given).stdout
    assert (
        "work   fibers 1 open, 1 failed; schedules 3 open, 2 keep failing; turns 0 open, 1 failed (in 3 storages)"
        in said
    )
    assert {path: path.stat().st_mtime_ns for path in (data / "agents").rglob("*")} == before


def test_a_fiber_that_waits_says_for_what_and_until_when() -> None:
    waiting = Fiber("f", 1, "job", status=FiberStatus.RUNNING, is_waiting=True, awaited=["go"], due_at_ms=60_000)
    for fiber, words in (
        (waiting, "waits for go or until 1970-01-01 00:01:00"),
        (waiting.but(due_at_ms=0), "waits for go"),
    ):
        row = {"agent": ADA, **asdict(fiber.shown(NOT_AWAKE, None))}
        assert COLUMNS["fibers"][1](row)[3].startswith(words)
        assert (row["status"], row["is_recovering"]) == ("running", False)


def test_work_is_listed_across_agents_with_its_last_error(given: str) -> None:
    fibers = {it["fiber_id"]: it for it in perdure_json("fibers", "--data", given)["fibers"]}
    assert (fibers["bad"]["agent"], fibers["bad"]["error"]) == (ADA, "ValueError: a bad fiber")
    assert (fibers["long"]["status"], fibers["long"]["is_recovering"]) == ("interrupted", True), "nobody serves it"
    assert [it["fiber_id"] for it in perdure_json("fibers", "--failed", "--data", given)["fibers"]] == ["bad"]
    failing = perdure_json("schedules", "--failed", "--data", given)["schedules"]
    assert {(it["kind"], it["status"], it["error"]) for it in failing} == {
        ("delayed", "parked", "LookupError: no such thing"),
        ("queued", "parked", "LookupError: no such thing"),
    }
    turns = perdure_json("turns", "--data", given)["turns"]
    assert sorted((it["agent"].partition("@")[0], it["status"]) for it in turns) == [("s", "completed"), ("x", "error")]
    (failed,) = perdure_json("turns", "--failed", "--data", given)["turns"]
    assert failed["error"]
    assert perdure_json("turns", "--agent", ADA, "--data", given)["turns"] == []
    assert perdure_json("schedules", "--limit", 1, "--data", given)["all"] == 3
    table = perdure("schedules", "--failed", "--data", given).stdout
    assert table.count("LookupError: no such thing") == 2


def test_inspect_shows_an_agent_with_its_state_tables_and_work(given: str) -> None:
    told = perdure_json("inspect", ADA, "--data", given)
    assert told["state"] == {"name": "Ada"}
    assert told["tables"] == [{"name": "pages", "columns": "title VARCHAR, number INTEGER", "rows": 2}]
    assert (told["host"], told["was_cut_off"]) == (None, True)
    assert [len(told[kind]) for kind in KINDS_OF_WORK] == [3, 3, 0]
    said = perdure("inspect", ADA, "--data", given).stdout
    for words in ("cut off at work", '{"name": "Ada"}', "pages(title VARCHAR, number INTEGER): 2 rows", "a bad fiber"):
        assert words in said
    assert "state" not in perdure_json("ps", ADA, "--data", given)
    asked = perdure_json("inspect", ADA, "--sql", "SELECT title FROM pages WHERE number > 1", "--data", given)
    assert asked == [{"title": "two"}]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inspect", ADA, "--sql", "INSERT INTO pages VALUES ('x', 3)"], "read-only"),
        (["inspect", ADA, "--sql", "COPY pages TO 'pages.csv'"], "disabled"),
        (["inspect", ADA, "--sql", "SELECT * FROM none"], "none does not exist"),
        (["inspect", ADA, "--sql", ""], "sql: it asks nothing"),
        (["inspect", ADA, "--sql", "-- nothing yet;"], "sql: it asks nothing"),
        (["inspect", "nobody@desk:Clerk"], "nobody@desk:Clerk is asleep or unknown"),
        (["inspect", "ada"], "no address of an agent"),
        (["fibers", "--agent", "nobody@desk:Clerk"], "is asleep or unknown"),
        (["ps", "nobody@desk:Clerk"], "is asleep or unknown"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_words(given: str, words: list[str], said: str) -> None:
    done = perdure(*words, "--data", given)
    assert done.exit_code != 0
    assert said in str(done.exception)


@pytest.mark.parametrize("snapshot", [False, True])
def test_an_agent_that_wrote_nothing_is_known_by_what_the_ledger_has_of_it(tmp_path: Path, *, snapshot: bool) -> None:
    asks, below, lost, gone = "asks@desk:Clerk", "head@desk:Clerk>b@desk:Clerk", "lost@desk:Clerk", "gone@desk:Clerk"
    facts: list[Fact] = [SupervisorStarted(1, asdict(Limits()))]
    for run_id, parent in (("one", asks), ("two", below), ("three", gone)):
        facts += [RunRequested(run_id, "desk:Clerk", parent, "", "d", b"\x01", {}, 0), RunAborted(run_id, "enough")]
    recorded(tmp_path, *facts, *lived(lost, 2, 7), RunCleared("three"), snapshot=snapshot)
    for agent in (asks, below, "head@desk:Clerk", lost, "one@desk:Clerk"):
        assert perdure_json("inspect", agent, "--data", tmp_path)["agent"] == agent
    for agent in (gone, "three@desk:Clerk"):
        assert perdure("inspect", agent, "--data", tmp_path).exit_code != 0
    told = perdure_json("inspect", "one@desk:Clerk", "--data", tmp_path)
    assert (told["run"], told["run_status"]) == ("one", "aborted")


def test_an_agent_that_was_deleted_is_unknown_before_the_snapshot_has_that(tmp_path: Path) -> None:
    agent = "lost@desk:Clerk"
    recorded(tmp_path, SupervisorStarted(1, asdict(Limits())), *lived(agent, 2, 7), snapshot=True)
    assert perdure_json("inspect", agent, "--data", tmp_path)["host"] is None
    recorded(tmp_path, AgentDoomed(agent), AgentForgotten(agent))
    for command in ("inspect", "forget"):
        done = perdure(command, agent, "--data", tmp_path)
        assert "is asleep or unknown" in str(done.exception)


def test_deleted_values_are_not_told_and_a_damaged_storage_is_named_and_stops_nothing(tmp_path: Path) -> None:
    recorded(tmp_path, SupervisorStarted(1, asdict(Limits())))
    written(tmp_path, OTHER, 1, "first", "second")
    with opened_copy(DirectorySource(tmp_path / "agents"), OTHER) as storage:
        assert storage is not None
        assert len(storage.look(["state"]).records["state"]) == 1
    written(tmp_path, ADA, 1, "value")
    file_of(tmp_path, ADA).write_bytes(b"no database")
    told = perdure_json("ps", "--data", tmp_path)["background"]
    assert (told["storages"], len(told["unreadable"])) == (2, 1)
    done = perdure("fibers", "--data", tmp_path)
    assert "a storage cannot be read" in done.stderr
    assert "There are no fibers in 2 storages." in done.stdout


def test_a_fiber_of_a_life_that_is_awake_runs_and_one_of_another_life_was_cut_off(data: Path) -> None:
    source = DirectorySource(data / "agents")
    (found,) = (it for it in look(source, source.places(), RECORDS_OF_WORK) if it.agent_id == ADA)
    for life, status in (
        (found.incarnation, "running"),
        (found.incarnation + 1, "interrupted"),
        (NOT_AWAKE, "interrupted"),
    ):
        told = {it["fiber_id"]: it["status"] for it in KINDS_OF_WORK["fibers"](found, life)}
        assert told["long"] == status
