"""The durable names of our own agents and tools: short, complete, and those of earlier directories are understood."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import FunctionType

import pytest

from perdure import Agent, actors, scenarios
from perdure.actors.chat.tools import options_of
from perdure.actors.code.naming import function_name, load_type, type_name
from perdure.actors.code.permanent_names import (
    FORMAT_FILE,
    LEDGER,
    PLACES,
    check_format,
    remember_format,
    scripts_have_module_names,
)
from perdure.ledger import LedgerDamaged, LedgerTooNew
from perdure.scenarios.stories.fan_out_agents import Census
from perdure.scenarios.swarm.chat_workloads import add
from tests.actors.cast import Doubler

ABSTRACT = {"Agent", "ChatAgent", "DurableAgent", "MessengerAgent"}  # what authors subclass is never asked for itself

# of the systems that the bench compares us with, where these are installed
PROGRAMS_OF_PEERS = (".dbos_children", ".restate_children")


def our_agents() -> list[type[Agent]]:
    for package in (actors, scenarios):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(PROGRAMS_OF_PEERS):
                importlib.import_module(module.name)
    found = [Agent]
    for cls in found:
        found += [each for each in cls.__subclasses__() if each not in found]
    return [cls for cls in found if cls.__module__.startswith("perdure.") and cls.__name__ not in ABSTRACT]


def test_every_agent_of_ours_has_a_permanent_name_and_is_found_by_it() -> None:
    names = {cls: type_name(cls) for cls in our_agents()}
    assert {name.partition(":")[0] for name in names.values()} <= set(PLACES)
    assert {name: load_type(name) for name in names.values()} == {name: cls for cls, name in names.items()}


def test_every_permanent_name_means_a_module_with_agents_or_tools() -> None:
    homes = {cls.__module__ for cls in our_agents()}
    for name, place in PLACES.items():
        things = vars(importlib.import_module(place.module)).values()
        tools = [each for each in things if isinstance(each, FunctionType) and options_of(each) is not None]
        assert tools or place.module in homes, name


def test_names_of_authors_are_those_of_their_modules() -> None:
    assert type_name(Doubler) == "tests.actors.cast:Doubler"


def test_a_directory_that_has_lost_its_format_gets_it_back_from_its_ledger(tmp_path: Path) -> None:
    remember_format(tmp_path)
    (tmp_path / LEDGER).mkdir()
    remember_format(tmp_path)
    (tmp_path / FORMAT_FILE).unlink()
    remember_format(tmp_path)
    assert (tmp_path / FORMAT_FILE).read_text() == "3\n"


def begun(data: Path) -> tuple[Path, Path]:
    """A directory with a ledger, which has a copy of the format. Returns both files."""
    remember_format(data)
    (data / LEDGER).mkdir()
    remember_format(data)
    return data / FORMAT_FILE, data / LEDGER / FORMAT_FILE


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("left", [b"", b"\0\0", b"\n"])
def test_a_format_that_is_torn_is_made_again_from_the_other_one(tmp_path: Path, left: bytes, which: int) -> None:
    files = begun(tmp_path)
    files[which].write_bytes(left)
    assert scripts_have_module_names(tmp_path / "code")
    remember_format(tmp_path)
    assert [file.read_bytes() for file in files] == [b"3\n", b"3\n"]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("bit", range(16))
def test_no_flipped_bit_of_a_format_gives_agents_other_names(tmp_path: Path, bit: int, which: int) -> None:
    files = begun(tmp_path)
    content = bytearray(b"3\n")
    content[bit // 8] ^= 1 << bit % 8
    files[which].write_bytes(content)
    if content[:1] == b"3" and content[1:].isspace():
        remember_format(tmp_path)
        return
    for _ in range(2):
        with pytest.raises(LedgerDamaged, match="is made again from the other") as refused:
            remember_format(tmp_path)
        assert all(str(file) in refused.value.problem for file in files)
    files[which].unlink()
    remember_format(tmp_path)
    assert files[which].read_bytes() == b"3\n"


def test_a_format_that_nobody_knows_any_more_is_refused(tmp_path: Path) -> None:
    for file in begun(tmp_path):
        file.write_bytes(b"")
    with pytest.raises(LedgerDamaged, match="say nothing"):
        check_format(tmp_path)
    for file in (tmp_path / FORMAT_FILE, tmp_path / LEDGER / FORMAT_FILE):
        file.write_bytes(b"\xff")
    with pytest.raises(LedgerDamaged, match="says"):
        check_format(tmp_path)
    for file in (tmp_path / FORMAT_FILE, tmp_path / LEDGER / FORMAT_FILE):
        file.write_bytes(b"4\n")
    with pytest.raises(LedgerTooNew, match="newer Perdure"):
        check_format(tmp_path)


def test_one_who_only_looks_at_a_directory_without_its_format_takes_the_ledger_s_copy(tmp_path: Path) -> None:
    begun(tmp_path)[0].unlink()
    assert scripts_have_module_names(tmp_path / "code")
    assert type_name(Census, tmp_path / "code") == "perdure.census:Census"


def test_a_directory_with_storages_alone_is_given_no_format(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    remember_format(tmp_path)
    assert not (tmp_path / FORMAT_FILE).exists()


def test_a_new_directory_uses_the_permanent_names(tmp_path: Path) -> None:
    remember_format(tmp_path)
    assert type_name(Census, tmp_path / "code") == "perdure.census:Census"
    (tmp_path / LEDGER).mkdir()
    assert (tmp_path / FORMAT_FILE).read_text() == "3\n"
    assert type_name(Census, tmp_path / "code") == "perdure.census:Census"


def test_a_directory_of_format_1_keeps_its_names_and_both_are_understood(tmp_path: Path) -> None:
    (tmp_path / LEDGER).mkdir()
    remember_format(tmp_path)
    assert not (tmp_path / FORMAT_FILE).exists()
    assert type_name(Census, tmp_path / "code") == "scenarios.census:Census"
    assert function_name(add, tmp_path / "code") == "scenarios.chat_workloads:add"
    assert load_type("scenarios.census:Census", tmp_path / "code") is load_type("perdure.census:Census") is Census


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_no_two_names_mean_the_same_module(place: object) -> None:
    assert list(PLACES.values()).count(place) == 1  # type: ignore[arg-type]
