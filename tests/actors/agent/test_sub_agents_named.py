"""Who may be a sub-agent, under which names, how deep and how many."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from perdure.ledger import BadRequest, OutcomeUnknown, sub_agent_id
from tests.actors.family_cast import Cousin, Elder, Kid, ask, kid
from tests.kit import Stage, address


@pytest.mark.shows(sub_agents="G9 R21")
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("text", "agent_class: 'Kid' is no agent class; pass the class itself, not its name or an object of it"),
        ("none", "agent_class: None is no agent class"),
        ("int", "agent_class: <class 'int'> is no agent class"),
        ("abstract", "agent_class: Abstract is abstract, so nothing can be one: it has no missing"),
        ("local", "is defined inside a function, where no other process can find it; move it out"),
    ],
)
async def test_what_is_no_class_of_agents_is_refused_at_once_with_words(stage: Stage, what: str, words: str) -> None:
    told = await stage.call(Elder, "find", what)
    assert told.startswith("BadRequest: ")
    assert words in told
    assert await stage.call(Elder, "kids") == []


@pytest.mark.shows(sub_agents="G91 R20")
@pytest.mark.parametrize("name", ["", " ", "a\0b", "x" * 300, "\ud800", 7, None])
async def test_a_name_that_is_none_is_refused_at_each_way_in(stage: Stage, name: Any) -> None:
    with pytest.raises(BadRequest):
        await stage.call(Elder, "drop", name)
    with pytest.raises(BadRequest):
        stage.client.agent(Kid, name, of=stage.client.agent(Elder, "p"))
    assert await stage.call(Elder, "kids") == []


@pytest.mark.shows(sub_agents="G12 G13 G20 G21 G22 G64 G67")
async def test_the_same_name_is_another_agent_under_another_class_parent_and_root(stage: Stage) -> None:
    assert await ask(stage, ["x"], "note", "1") == ["1"]
    assert await ask(stage, ["x", "x"], "note", "2") == ["2"]
    assert await ask(stage, ["y", "x"], "note", "3") == ["3"]
    assert await ask(stage, ["x"], "note", "4", root="q") == ["4"]
    assert await stage.call(Elder, "cousin", "x", "5") == ["5"]
    assert await ask(stage, [], "note", "6") == ["6"]
    assert await ask(stage, ["x", "x"], "way") == ["p", "x", "x"]
    assert await ask(stage, ["x", "x"], "parents_name") == "x"
    await stage.call(Elder, "drop", "x")
    assert await ask(stage, ["y", "x"], "notes") == ["3"]
    assert (await stage.call(Elder, "cousin", "x", "7"))[0] == "5", "the other class keeps its own"
    assert await ask(stage, ["x"], "notes", root="q") == ["4"]
    assert await ask(stage, ["x", "x"], "notes") == []


@pytest.mark.shows(sub_agents="G87 G89 G90 G95 R4")
async def test_children_are_listed_in_the_order_of_their_creation_of_all_classes_or_of_one(stage: Stage) -> None:
    for name in ("c", "a", "b"):
        await ask(stage, [name], "note", "x")
        await asyncio.sleep(0.01)
    await stage.call(Elder, "cousin", "0", "x")
    found = await stage.call(Elder, "described")
    assert [each[1] for each in found] == ["c", "a", "b", "0"]
    assert [each[0].rpartition(":")[2] for each in found] == ["Kid", "Kid", "Kid", "Cousin"]
    assert [each[2] for each in found] == sorted(each[2] for each in found)
    assert found[0][2] > 1_000_000_000_000
    for way in ("class", "text"):
        assert [each[1] for each in await stage.call(Elder, "described", way)] == ["0"]
        assert await stage.call(Elder, "has", way, "0")
        assert not await stage.call(Elder, "has", way, "a")


async def test_a_family_may_be_ten_deep_and_more_and_ends_at_a_depth_that_is_said(stage: Stage) -> None:
    names = [f"level {number}" for number in range(10)]
    assert await ask(stage, names, "note", "deep") == ["deep"]
    assert await ask(stage, names, "way") == ["p", *names]
    with pytest.raises(BadRequest, match="32 deep"):
        await ask(stage, ["x"] * 32, "way")
    await stage.call(Elder, "drop", names[0])
    await stage.call(Elder, "drop", "x")
    await stage.until(lambda: not stage.view.doomed)
    assert not any(stage.laboratory.disk.has(kid(*names[: number + 1])) for number in range(10))


@pytest.mark.shows(sub_agents="G4")
async def test_hundreds_of_children_come_and_go(stage: Stage) -> None:
    names = [f"n{number}" for number in range(120)]
    await stage.call(Elder, "visit_all", names)
    assert sorted(await stage.call(Elder, "kids")) == sorted(names)
    await stage.call(Elder, "drop_all", names[1:])
    await stage.until(lambda: not stage.view.doomed)
    assert await stage.call(Elder, "kids") == names[:1]
    assert await ask(stage, ["n0"], "note", "x") == ["x"]


async def test_a_call_through_an_ancestor_that_dies_is_unknown_or_made_and_never_made_twice(stage: Stage) -> None:
    for number in range(6):
        name = f"k{number}"
        await ask(stage, [name], "way")
        inner: Any = stage.client.agent(Kid, name, of=stage.client.agent(Elder, "p"))
        call = asyncio.ensure_future(inner.note("once"))
        await asyncio.sleep(number / 500)
        stage.kill_host_of(address(Elder, "p"))
        with suppress(OutcomeUnknown):
            assert await call == ["once"]
        await asyncio.sleep(5)
        assert await ask(stage, [name], "notes") in ([], ["once"])


@pytest.mark.shows(sub_agents="R60 weakness-35")
async def test_the_gate_is_asked_for_every_call_and_at_every_level(stage: Stage) -> None:
    root = stage.client.agent(Elder, "p")
    inner: Any = stage.client.agent(Kid, "a", of=root)
    leaf: Any = stage.client.agent(Kid, "b", of=inner)
    await ask(stage, ["a", "b"], "note", "x")
    assert await leaf.notes() == ["x"]
    await stage.call(Elder, "drop", "a")
    with pytest.raises(BadRequest, match=r">a@.* its parent has no such child"):
        await leaf.notes()
    with pytest.raises(BadRequest, match=r">a@.* its parent has no such child"):
        await inner.notes()
    assert await stage.call(Elder, "kids") == [], "nobody was made by asking"


@pytest.mark.parametrize(
    "method", ["constructor", "hasOwnProperty", "__init__", "planned", "sql", "destroy", "_perdure", "then"]
)
async def test_only_what_the_author_exposed_can_be_called(stage: Stage, method: str) -> None:
    await ask(stage, ["a"], "way")
    handle: Any = stage.client.agent(Kid, "a", of=stage.client.agent(Elder, "p"))
    if method.startswith("__"):
        with pytest.raises(BadRequest, match="no exposed method"):
            await stage.call(Kid, method)
    else:
        with pytest.raises(BadRequest, match=f"Kid has no exposed method '{method}'"):
            await getattr(handle, method)()
    assert await handle.way() == ["p", "a"]


@pytest.mark.shows(sub_agents="R6 R7")
async def test_a_handle_is_no_awaitable_and_its_inner_names_are_no_calls(stage: Stage) -> None:
    handle: Any = stage.client.agent(Kid, "a", of=stage.client.agent(Elder, "p"))
    for name in ("__await__", "__iter__", "__len__", "__json__", "__aenter__", "__fspath__"):
        assert not hasattr(handle, name)
    assert "<handle of p@" in repr(handle)
    with pytest.raises(BadRequest, match="no handle of an agent"):
        stage.client.agent(Cousin, "b", of="p")
    assert kid("a") == sub_agent_id(address(Elder, "p"), address(Kid, "a").rpartition("@")[2], "a")
