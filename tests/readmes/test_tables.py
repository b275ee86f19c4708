"""The tables of the READMEs are complete: kill points, reasons, limits, commands, figures; and outputs have the shape that is shown."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

import pytest
from typer.testing import CliRunner

from perdure import policies
from perdure.actors import KillPoint
from perdure.actors.chat import chat_messages, history
from perdure.actors.chat.turn import OUTPUT
from perdure.actors.events.message_parts import RETRACT
from perdure.actors.events.observability import Channel
from perdure.ledger import Status
from perdure.ledger.status import InterruptedReason
from perdure.policies import (
    STEERED,
    TURN_ENDED,
    CatchUp,
    ChatRecovery,
    ContextOverflow,
    DeliveryOutcome,
    Limits,
    Part,
    phases,
)
from perdure.scenarios import exits
from perdure.scenarios.bench.command import FIGURES
from perdure.scenarios.cli import app
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan
from tests.actors.chat.desk import SCRIPT, Outside, play
from tests.readmes.commands import command, options_of
from tests.readmes.pages import CHAT, CODE, FRONT, GUIDE, LEDGER, LIMITS, MESSENGER, SCENARIOS, WORK, rows
from tests.test_tidy import BODY_LINES_MAX, DEPTH_MAX, FILE_LINES_MAX
from tests.tidy import FOLDERS, ROOT

GUARANTEES = LEDGER.section("Guarantees")
INTERRUPTED = LEDGER.section("Interrupted runs")
SYSTEMS = {row[0]: row[1:] for row in rows(SCENARIOS.section("Others"))}


def test_the_table_of_guarantees_names_every_kill_point_and_no_other() -> None:
    named = re.findall(r"`([A-Z][A-Z_]+)`", GUARANTEES)
    assert sorted(named) == sorted(point.name for point in KillPoint), "each stands in one row"


def test_the_rows_of_guarantees_are_complete() -> None:
    assert all(len(row) == 4 and row[0] and row[1] and row[2] for row in rows(GUARANTEES))


def test_every_reason_of_an_interruption_has_a_row() -> None:
    reasons = [row[0].strip("`") for row in rows(INTERRUPTED)]
    assert set(reasons) == set(InterruptedReason)


def test_every_patience_is_named_as_it_is_set_and_has_its_default() -> None:
    table = {row[0]: row[1:] for row in rows(INTERRUPTED, table=1)}
    limits = Limits()
    hour = 3_600_000
    assert limits.detached_max_budget_ms == 24 * hour
    assert limits.detached_no_progress_budget_ms == hour
    assert limits.reattach_no_progress_ms == hour / 30
    assert limits.reattach_window_ms == policies.INFINITY
    assert [row[1] for row in table.values()] == ["24 h", "1 h", "2 min", "infinity"]


EVENTS = {name: CODE.findall(row[1]) for row in rows(CHAT.section("Events")) for name in CODE.findall(row[0])}
NO_EVENTS = {"object", "text", "chunks", "kind", "step-start"}  # types of schemas, of parts, and of the frames of runs


def made_events() -> Iterable[tuple[str, set[str]]]:
    """The types of the events that the code of chats makes, and the keys with which it makes them."""
    for file in (*(ROOT / "actors/chat").glob("*.py"), ROOT / "actors/events/message_parts.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Dict):
                told = {
                    key.value: each
                    for key, each in zip(node.keys, node.values, strict=True)
                    if isinstance(key, ast.Constant)
                }
                named = ast.unparse(told["type"]).strip("'") if next(iter(told), "") == "type" else ""
                yield NAMED.get(named, named), set(map(str, told)) - {"type"}


NAMED = {"RETRACT": RETRACT, "OUTPUT": OUTPUT}


def test_the_table_of_chat_events_names_each_that_is_made_with_its_keys() -> None:
    """Texts and reasoning are made by one code, which puts the name together; what a person said meanwhile, by `policies.ui_messages`."""
    made = [(name, keys) for name, keys in made_events() if re.fullmatch(r"[a-z-]+", name) and name not in NO_EVENTS]
    reasoning = {f"reasoning-{each}" for each in ("start", "delta", "end")}
    assert {name for name, _ in made} | reasoning | {STEERED} == EVENTS.keys()
    assert not [(name, keys - {*EVENTS[name]}) for name, keys in made if keys - {*EVENTS[name]}]


def test_what_a_callback_is_told_is_in_the_table_of_chat_events() -> None:
    """An answer with tools that stalls and breaks off, as a callback hears it."""
    faults = {1: Fault(kind=FaultKind.STALL, event=3), 2: Fault(kind=FaultKind.RESET, event=2)}
    Outside.begin(SCRIPT, FaultPlan.at(faults))
    heard = [each[1] for listener in play("sum")[1] for each in listener.heard if each[0] == "on_event"]
    assert {"data-attempt", "data-status", "data-retract", "tool-output-available"} <= {each["type"] for each in heard}
    for event in heard:
        inner = event["data"].keys() if event["type"].startswith("data-") else set[str]()
        assert {*event, *inner} - {"type"} <= {*EVENTS[event["type"]]}, event


def test_the_table_of_commands_names_each_once() -> None:
    """Each command, and instead of `run` each scenario that it can play."""
    cells = " ".join(row[1] for row in rows(SCENARIOS.section("Commands")))
    scenarios = [f"run {name}" for name in command("run").commands]
    named = re.findall(r"`perdure ((?:run )?[\w-]+)", cells)
    assert sorted(named) == sorted([*scenarios, *(set(command().commands) - {"run"})])


def test_the_options_in_the_table_belong_to_some_command() -> None:
    cells = " ".join(row[1] for row in rows(SCENARIOS.section("Commands")))
    known = set[str]().union(*(options_of(command(name)) for name in command().commands))
    assert set(re.findall(r"--[a-z-]+", cells)) <= known


def test_every_group_of_figures_has_a_row_and_no_other_is_there() -> None:
    groups = [row[0].strip("`") for row in rows(SCENARIOS.section("Figures"))]
    assert list(dict.fromkeys(groups)) == list(FIGURES)


def test_the_figures_of_the_front_page_are_those_of_the_table_of_others() -> None:
    heads = re.search(r"^\| \| Perdure \| (.+) \|$", FRONT.text, re.MULTILINE)
    assert heads is not None
    _, awaited, fanned, _ = rows(FRONT.section("Why"))
    assert awaited[1] == fanned[1] == "1"
    for name, *ratios in zip(heads[1].split(" | "), awaited[2:], fanned[2:], strict=True):
        (figures,) = [each for system, each in SYSTEMS.items() if system.startswith(name)]
        assert figures == ratios, name


def test_the_ratios_to_plain_ray_are_those_that_were_measured() -> None:
    ours = {row[0]: row[2] for row in rows(SCENARIOS.section("Figures"))}
    (plain,) = [each for system, each in SYSTEMS.items() if system.startswith("plain Ray")]
    awaited, fanned = (
        float(re.search(r"([\d.]+) × (?:a )?Ray call", ours[group])[1]) for group in ("`awaited`", "`fan-out`")
    )  # type: ignore[index]
    assert plain == [f"{1 / awaited:.1f} ×", f"{fanned:.0f} ×"]


def test_the_map_names_every_room_and_no_other() -> None:
    rooms = [path.parent for folder in FOLDERS for path in (ROOT / folder).rglob("__init__.py")]
    named = list[str]()
    for folder, cell in rows(WORK.section("Where things are")):
        (top,) = re.findall(r"`(\w+)/`", folder)
        named += [f"{top}/{room}" for room in re.findall(r"`(\w+)/`", cell)]
    named += FOLDERS
    assert sorted(named) == sorted(room.relative_to(ROOT).as_posix() for room in rooms)


def test_the_limits_to_know_have_the_defaults_that_are_said() -> None:
    known, units = Limits(), {"MB": 1024 * 1024, "s": 1_000, "": 1}
    table = rows(LIMITS.section("The ones to know"))
    assert {"`hosts_max`", "`pack_max`", "`waiting_max`"} <= {row[0] for row in table}
    for names, default, _ in table:
        number, _, unit = default.partition(" ")
        for name in re.findall(r"`(\w+)`", names):
            assert getattr(known, name) == float(number.replace(",", "")) * units[unit], name


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (LEDGER.section("Interrupted runs"), Status),
        (CHAT.section("Turns"), sorted(TURN_ENDED)),
        (MESSENGER.section("What holds"), DeliveryOutcome),
        (GUIDE.section("Hooks and events"), Channel),
        (GUIDE.section("Jobs, schedules and sub-agents"), CatchUp),
    ],
    ids="runs turns replies channels ticks".split(),
)
def test_statuses_and_choices_are_all_named(where: str, words: Iterable[str]) -> None:
    assert [word for word in words if f"`{word}`" not in where] == []


def test_the_house_rules_have_the_bounds_that_are_kept() -> None:
    shown = f"at most {FILE_LINES_MAX} lines, a function at most {BODY_LINES_MAX}, and blocks nest at most three deep"
    assert shown in WORK.prose
    assert DEPTH_MAX == 3


def test_the_help_has_the_exit_codes_of_the_commands() -> None:
    said = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    codes = re.search(r"Exit codes: (\d+) success; (\d+) [^;]+; (\d+) [^;]+; (\d+) [^;]+; (\d+) [^;]+; (\d+) ", said)
    assert codes is not None
    known = [0, exits.DIFFERS, exits.REFUSED, exits.STOPPED, exits.TERMINATED, exits.UNREAD]
    assert [int(code) for code in codes.groups()] == known


def test_the_bounds_of_chats_are_those_of_the_code() -> None:
    bounds = ChatRecovery()
    shown = f"max_attempts={bounds.max_attempts}, no_progress_timeout_ms={bounds.no_progress_timeout_ms:_}"
    assert f"`chat_recovery = ChatRecovery({shown}, max_recovery_work={bounds.max_recovery_work:_}, …)`" in CHAT.prose
    assert (phases.CONSECUTIVE_MAX, phases.FAILURES_MAX) == (5, 20)
    assert "five times in a row, twenty in all" in CHAT.prose
    overflow = ContextOverflow()
    said = f"reactive={overflow.reactive}, max_retries={overflow.max_retries}, max_input_tokens=inf"
    assert overflow.max_input_tokens == float("inf")
    assert f"`ContextOverflow({said}, keep_tokens={overflow.keep_tokens:_})`" in CHAT.prose
    assert (history.TRIES_MAX, "sent up to five times" in CHAT.prose) == (5, True)
    assert (chat_messages.MESSAGE_BYTES_MAX, chat_messages.RESULT_BYTES_MAX) == (1_800_000, 1_000_000)
    said = "In messages over 1.8 MB parts are cut to 256 KiB or less, results first; a result to 1 MB, with a note."
    assert said in CHAT.prose
    part: Part = {"type": "text", "text": "x" * chat_messages.MESSAGE_BYTES_MAX}
    (kept,) = chat_messages.for_storage({"id": "m", "role": "user", "parts": [part]})["parts"]
    assert len(kept["text"]) == pytest.approx(256 * 1024, rel=0.001)


# ---------------------------------------------------------------- outputs


def shape(line: str) -> str:
    """A line without its numbers, ids and counts of one or many."""
    return re.sub(r"[0-9a-f]{12}|\d[\d.,]*", "N", line).replace("runs were", "run was").strip()


def test_the_fan_out_prints_what_the_front_page_shows() -> None:
    """Numbers differ from run to run, and in the simulated world there are no processes. All else is as it is shown."""
    said = CliRunner().invoke(app, ["run", "fan-out", *"--children 16 --kills 3 --world sim".split()])
    assert said.exit_code == 0
    printed = {shape(line) for line in said.output.splitlines()}
    shown = [re.sub(r" \(process \d+\)", "", line) for line in FRONT.blocks("text")[0].splitlines()]
    assert len(shown) > 10
    assert [line for line in shown if shape(line) not in printed] == []
