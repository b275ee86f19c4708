"""What the READMEs name exists: links, files, methods, errors, limits, commands and options."""

from __future__ import annotations

import asyncio
import builtins
import collections
import decimal
import re
import tomllib
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pydantic
import pydantic_ai
import pytest

import perdure
from perdure import actors, gateway, ledger, messengers, policies, testing
from perdure.actors import Agent, ChatAgent, ChatRecovery, Detached, RunContext, RunInfo, Runtime
from perdure.actors.chat.feed import TurnEnded
from perdure.actors.life.child_types import RunOptions
from perdure.policies import Limits
from perdure.scenarios.stories import engine
from perdure.scenarios.testing import laboratory
from tests.actors.chat.desk import Listener
from tests.readmes.commands import command, options_of
from tests.readmes.pages import CODE, FRONT, GUIDE, LEDGER, PAGES, PYTHON, SHELL, WORDS, WORK, Page
from tests.tidy import ROOT

EVERY_PAGE = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
FRONT_LINES_MAX = 180
WORDS_MAX, PAGE_WORDS_MAX = 15_000, 3_000
COMING = GUIDE.section("Coming from Cloudflare Agents")
RENAMED = {"Think", "AIChatAgent", "StateAdapter"}  # of Cloudflare's names; all others keep theirs
SAME_NAMES = """
    runAgentTool cancelAgentTool inspectAgentToolRun hasAgentToolRun clearAgentToolRuns maxConcurrentAgentTools parentToolCallId
    displayOrder display inputPreview childStillRunning onFinish maxBudgetMs noProgressBudgetMs detachedMaxBudgetMs
    detachedNoProgressBudgetMs notify onMilestones formatDetachedCompletion formatDetachedMilestone onAgentToolStart
    onAgentToolFinish getAgentToolOutput getAgentToolSummary formatAgentToolInput reportProgress onProgress runsForToolCall
    unboundRuns onBeforeSubAgent subAgent schedule sql agentToolReattachNoProgressTimeoutMs agentToolReattachMaxWindowMs subscribe
    chatRecovery maxAttempts stableTimeoutMs terminalMessage maxRecoveryWork noProgressTimeoutMs shouldKeepRecovering onExhausted
    onChatRecovery chatStreamStallTimeoutMs stash repairInterruptedToolPart hasPendingInteraction waitUntilStable saveMessages
    continueLastTurn submitMessages chat onStart onEvent onDone onError onInterrupted cancelChat cancelAllChats runFiber startFiber
    fiberId idempotencyKey inspectFiber inspectFiberByKey listFibers cancelFiber cancelFiberByKey resolveFiber
    deleteFibers onFiberRecovered snapshot settledAtMs agentTool Agent AgentToolFailure ChatRecovery FiberContext FiberResult
"""


# ---------------------------------------------------------------- pages and links


def test_the_pages_are_short() -> None:
    words = {path: len(page.text.split()) for path, page in PAGES.items()}
    assert {path: count for path, count in words.items() if count > PAGE_WORDS_MAX} == {}
    assert sum(words.values()) <= WORDS_MAX


def test_the_front_page_is_one_page() -> None:
    assert len(FRONT.text.splitlines()) <= FRONT_LINES_MAX


def test_the_front_page_leads_to_every_other() -> None:
    assert {f"]({path})" for path in PAGES if path != FRONT.path} <= set(re.findall(r"\]\([^)]+\)", FRONT.text))


@EVERY_PAGE
def test_links_lead_somewhere(page: Page) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.text):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        there = (ROOT / page.path).parent.joinpath(path).resolve() if path else ROOT / page.path
        assert there.exists(), target
        if anchor:
            assert anchor in Page(str(there.relative_to(ROOT))).anchors(), target


@EVERY_PAGE
def test_files_of_the_project_that_are_named_are_there(page: Page) -> None:
    ours = {word for word in page.words if re.fullmatch(r"[\w/]+\.(?:py|toml|yaml|csv)", word)}
    folders = {word for word in page.words if re.fullmatch(r"(?:actors|ledger|policies|scenarios|tests)/[\w/]*", word)}
    assert [word for word in ours | folders if not (ROOT / word).exists()] == []


def test_the_patterns_for_files_and_links_find_something() -> None:
    assert {"ray_cluster.yaml", "actors/gateway/ray_job.yaml", "policies/limits.py"} <= set(WORDS)


@EVERY_PAGE
def test_nothing_is_said_of_how_it_was_made(page: Page) -> None:
    for word in ("issue", "TODO", str(Path.home())):
        assert not re.search(rf"\b{re.escape(word)}\b", page.text, re.IGNORECASE), word


def test_every_dependency_has_a_reason() -> None:
    """On its line; that of an extra in one line stands above it, and may be for several."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    lines = text.partition("\ndependencies = [\n")[2].partition("\n[project.scripts]")[0].splitlines()
    assert [line for line in lines if line.startswith('    "') and " # " not in line] == []
    extras = [(above, line) for above, line in pairwise(lines) if re.match(r"\w+ = \[", line)]
    assert len(extras) > 5
    assert [line for above, line in extras if not re.match(r"# |\w+ = \[", above)] == []


# ---------------------------------------------------------------- names of the library


def has(owner: object, name: str) -> bool:
    return hasattr(owner, name) or name in getattr(owner, "__annotations__", ())


OWNERS: dict[str, tuple[type, ...]] = {
    "runtime": (Runtime,),
    "run": (RunContext, RunInfo),
    "result": (actors.RunCompleted, actors.RunFailed, actors.TurnResult),
    "self": (Agent, ChatAgent),
    "fiber": (actors.FiberContext,),
}
INSTANCES = {  # set when they are made
    "run": {"run_id", "attempt", "parent_tool_call_id", "joined"},
    "fiber": {"id"},
}
SPOKEN = [*WORDS, *PYTHON]


@pytest.mark.parametrize("owner", OWNERS)
def test_what_is_said_of_the_runtime_of_runs_and_of_agents_exists(owner: str) -> None:
    own = set(re.findall(r"^    (?:async )?def (\w+)", "".join(PYTHON), re.MULTILINE)) if owner == "self" else set()
    instance = INSTANCES.get(owner, set())
    spoken = {name for text in SPOKEN for name in re.findall(rf"(?<![\w.]){owner}\.(\w+)", text)}
    assert spoken, "the pattern finds nothing any more"
    assert not [name for name in spoken - own - instance if not any(has(kind, name) for kind in OWNERS[owner])]


LIBRARIES = (asyncio, collections, decimal, pydantic, pydantic_ai, pydantic_ai.exceptions)


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
        gateway,
        ledger,
        messengers,
        policies,
        laboratory,
        testing,
        engine,
        *LIBRARIES,
    )
    words = {word.partition("(")[0] for word in WORDS} - RENAMED
    words = {word for word in words if re.fullmatch(r"[A-Z]\w*[a-z]\w*|(?:on|agent_tool|detached)_\w+", word)}
    own = {*re.findall(r"(?:class|def) (\w+)", "".join(PYTHON)), *dir(builtins)}
    programs = "".join(path.read_text("utf-8") for path in (ROOT / "tests/gateway").glob("*.mjs"))
    # and the names of the clients that these programs play
    own |= {word for word in words if re.search(rf"\b{word}\b", programs)}
    assert {"StorageConflict", "OutcomeUnknown", "on_progress", "detached_max_budget_ms"} <= words
    unknown = [word for word in words - own if not any(hasattr(home, word) for home in homes)]
    assert not [word for word in unknown if not has(Detached, word) and not has(RunOptions, word)]
    imported = (perdure, messengers, gateway, testing, engine, *LIBRARIES)
    classes = {word for word in words - own if word[0].isupper()}
    assert not [word for word in classes if not any(hasattr(home, word) for home in imported)], (
        "authors cannot import it"
    )


def test_what_a_name_of_cloudflare_is_here_exists() -> None:
    homes = (
        *(Agent, ChatAgent, Listener, RunContext, Detached, ChatRecovery, Runtime, actors, messengers),
        *(
            actors.RunInfo,
            actors.RunFailed,
            actors.AgentToolEvents,
            actors.FiberInspection,
            actors.FiberContext,
            RunOptions,
        ),
    )
    assert set(CODE.findall(COMING)) >= RENAMED
    names = {
        word if word[0].isupper() else re.sub(r"[A-Z]", lambda each: f"_{each[0].lower()}", word)
        for word in SAME_NAMES.split()
    }
    assert sorted(name for name in names if not any(has(home, name) for home in homes)) == []


def test_an_adapter_has_as_many_methods_as_is_said() -> None:
    methods = {name for name in vars(messengers.Adapter) if not name.startswith("_")}
    assert len(methods) == 7
    assert "the seven methods of `Adapter`" in WORK.prose


def test_limits_that_are_named_exist_and_have_the_value_that_is_said() -> None:
    known = {field.name: getattr(Limits(), field.name) for field in fields(Limits)}
    elsewhere = (
        {each.name for each in fields(Detached)}
        | set(dir(ChatAgent))
        | {each.name for each in fields(ChatRecovery)}
        | set(vars(ledger.Overloaded(1, 1, 1)))
        | set(actors.FiberInspection.__annotations__)
        | set(TurnEnded.__annotations__)
        | set(ledger.ReplicaSettings._fields)
    )
    named = {word for word in WORDS if re.fullmatch(r"[a-z][a-z_]+_(?:ms|max)", word)}
    assert named - elsewhere <= known.keys()
    said = [pair for page in PAGES.values() for pair in re.findall(r"`([a-z_]+)` \(([\d,]+)\)", page.prose)]
    assert {name for name, _ in said} >= {"threads_max", "recovery_work_max"}
    assert {name: int(value.replace(",", "")) for name, value in said} == {name: known[name] for name, _ in said}
    assert known["inline_bytes_max"] == 512
    assert known["input_bytes_max"] == known["output_bytes_max"] == 4 * 1024 * 1024
    assert (known["attempts_max"], known["handler_attempts_max"], known["group_max"]) == (5, 8, 256)
    assert known["idle_ms"] == 5_000
    assert known["progress_ms"] == 200
    assert known["heartbeat_ms"] * known["heartbeat_misses_max"] == 10_000
    assert known["orphan_ms"] == 60_000


# ---------------------------------------------------------------- commands


def test_the_commands_and_options_that_are_named_exist() -> None:
    lines = [word for word in WORDS if word.startswith("perdure ")]
    lines += re.findall(r"\bperdure [a-z][^\n'#&]*", SHELL)
    assert len(lines) > 20
    for line in lines:
        words = line.split()[1:]
        known = command(words[0])
        if words[1:] and words[1] in getattr(known, "commands", {}):
            known = command(*words[:2])
        assert set(re.findall(r"(?<!\S)--[a-z-]+", line)) <= options_of(known), line


def test_the_extras_markers_and_folders_in_shell_blocks_exist() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert set(re.findall(r"\.\[(\w+)\]", SHELL)) <= config["project"]["optional-dependencies"].keys()
    markers = {marker.partition(":")[0] for marker in config["tool"]["pytest"]["ini_options"]["markers"]}
    assert set(re.findall(r"pytest -m (\w+)", SHELL)) <= markers
    assert [path for path in re.findall(r"pytest -n0 (\S+)", SHELL) if not (ROOT / path).exists()] == []


def test_the_launchers_commands_are_those_of_the_configuration() -> None:
    config = (ROOT / "ray_cluster.yaml").read_text("utf-8")
    for line in SHELL.splitlines():
        if "ray_cluster.yaml" in line:
            assert line.partition("#")[0].strip() in config


def test_the_files_that_are_said_to_lie_in_the_directory_are_named_by_the_code() -> None:
    code = "".join(
        path.read_text("utf-8")
        for folder in ("actors", "ledger", "scenarios")
        for path in (ROOT / folder).rglob("*.py")
    )
    named = {word for word in LEDGER.words if re.fullmatch(r"[a-z]+\.(?:json|lock|db|journal)", word)}
    assert {"cluster.json", "ledger.db"} <= named
    assert [word for word in named if f'"{word}"' not in code] == []
