"""Durable names of agent types: from a class itself, or from the place of its code, and what is told when two could be meant as one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from perdure.actors import Agent, exposed
from perdure.actors.code.known_types import TYPES, NotedProgram, damaged_lines, known_types, mistakable, remember_type
from perdure.actors.code.naming import load_type, place_name, type_name
from perdure.actors.runtime.packing import files_for
from perdure.ledger import BadRequest, UnknownAgentType, agent_id, parent_of, sub_agent_id, type_of
from tests.kit import Stage, some
from tests.tidy import IMPORT_PATH


class Counter(Agent, name="test-counter"):
    @exposed
    def count(self) -> int:
        with self.transaction():
            self.state["count"] = self.state.get("count", 0) + 1
            return int(self.state["count"])


class Special(Counter):
    """Has no name of its own."""


def test_a_class_with_a_name_is_called_by_it_and_its_subclasses_are_not(tmp_path: Path) -> None:
    assert type_name(Counter, tmp_path / "code") == "name:test-counter"
    assert type_name(Special) == "tests.actors.code.test_type_names:Special"
    assert load_type("name:test-counter", tmp_path / "code") is Counter
    of_ada = agent_id("name:test-counter", "Ada")
    below = sub_agent_id(of_ada, "m:Other", "x")
    assert (type_of(of_ada), parent_of(below)) == ("name:test-counter", of_ada)


async def test_an_agent_of_such_a_class_is_called_and_wakes_again(stage: Stage) -> None:
    assert await stage.call(Counter, "count") == 1
    await stage.until(lambda: not stage.view.agents)
    assert await stage.call(Counter, "count") == 2


def test_two_classes_that_claim_one_name_are_refused_with_both_places() -> None:
    with pytest.raises(BadRequest, match=r"test_type_names.py:Counter and by .*test_type_names.py:.*Thief"):

        class Thief(Agent, name="test-counter"):
            """Another one."""


@pytest.mark.parametrize("name", ["a@b", " x", "perdure.census:Census"])
def test_a_name_that_cannot_stand_in_an_address_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="name"):
        type("Odd", (Agent,), {}, name=name)


TALLY = """
    from pathlib import Path
    from perdure import Agent
    from perdure.actors.code.naming import type_name

    class Tally(Agent{named}):
        pass

    CODE = Path({code!r})
    def told():
        return type_name(Tally, CODE)

    if __name__ == "__main__":
        print(told())
"""


def named_by(folder: Path, *command: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={"PYTHONPATH": IMPORT_PATH},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr


def written(folder: Path, code: Path, named: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tally.py").write_text(dedent(TALLY).format(code=str(code), named=named))
    return folder


def test_a_script_its_import_and_a_moved_copy_are_one_type(tmp_path: Path) -> None:
    home, code = written(tmp_path / "home", tmp_path / "data/code"), tmp_path / "data/code"
    names = {
        named_by(home, "tally.py")[0],
        named_by(home, "-m", "tally")[0],
        named_by(home, "-c", "import tally; print(tally.told())")[0],
        named_by(written(tmp_path / "copy", code), "tally.py")[0],
    }
    assert names == {"tally:Tally"}


GUARD = 'if __name__ == "__main__":\n    print(told())'
BARE = "with open(__file__):\n    Runtime = print\n    Runtime(told())"


def without_guard(folder: Path, name: str = "tally.py") -> Path:
    file = folder / name
    file.write_text(file.read_text().replace(GUARD, BARE))
    return folder


def test_a_script_with_and_without_a_main_block_and_a_moved_copy_are_one_type(tmp_path: Path) -> None:
    home, code = written(tmp_path / "home", tmp_path / "data/code"), tmp_path / "data/code"
    guarded = named_by(home, "tally.py")
    bare = named_by(without_guard(home), "tally.py")
    moved = named_by(without_guard(written(tmp_path / "copy", code)), "tally.py")
    assert guarded == bare == moved == ("tally:Tally", "")
    assert [known.place for known in known_types(code)] == [
        "tally:Tally",
        f"script:{home}/tally.py:Tally",
        f"script:{tmp_path}/copy/tally.py:Tally",
    ]
    assert named_by(written(tmp_path / "copy", code), "tally.py")[0] == "tally:Tally"


LOADED = """
import sys
from pathlib import Path
from perdure.actors.code.naming import load_function, load_type, function_name, type_name
code = Path(sys.argv[1])
cls, function = load_type("tally:Tally", code), load_function("tally:told", code)
print(cls.__module__.rpartition("_")[0], type_name(cls, code), function_name(function, code))
"""


def test_of_a_script_without_a_main_block_others_execute_what_its_class_needs_until_it_gets_one(tmp_path: Path) -> None:
    home, code = without_guard(written(tmp_path / "home", tmp_path / "data/code")), tmp_path / "data/code"
    assert named_by(home, "tally.py")[0] == "tally:Tally"
    assert named_by(home, "-c", LOADED, str(code)) == ("perdure_script tally:Tally tally:told", "")
    assert named_by(tmp_path, "-c", LOADED, str(code)) == ("perdure_script tally:Tally tally:told", "")
    written(home, code)
    assert named_by(home, "-c", LOADED, str(code)) == ("tally:Tally tally:told", "")


def test_a_script_that_nobody_could_import_goes_by_its_path_with_and_without_a_main_block(tmp_path: Path) -> None:
    home = written(tmp_path / "home", tmp_path / "data/code")
    (home / "tally.py").rename(home / "my-tally.py")
    guarded = named_by(home, "my-tally.py")
    without_guard(home, "my-tally.py")
    assert named_by(home, "my-tally.py") == guarded == (f"script:{home}/my-tally.py:Tally", "")


@pytest.mark.parametrize("name", ["tally.py", "my-tally.py"])
@pytest.mark.parametrize("way", some(1, ["spawn", "forkserver", "by its name"]))
def test_a_worker_process_calls_a_class_of_the_script_as_the_script_does(way: str, name: str, tmp_path: Path) -> None:
    home = written(tmp_path / "home", tmp_path / "data/code")
    by_name = way == "by its name"
    text = (home / "tally.py").read_text()
    work = f"def work():\n    print(told(), flush=True)\n{GUARD}\n    import multiprocessing\n"
    work += f"    worker = multiprocessing.get_context({'spawn' if by_name else way!r}).Process(target=work)\n"
    work += "    worker.start(), worker.join()\n"
    (home / name).write_text(text.replace(GUARD, work))
    command = ["-m", name.removesuffix(".py")] if by_name else [name]
    main, worker = named_by(home, *command)[0].splitlines()
    assert main == worker


def by_value(noted: object) -> type:
    """As an unpickled class of another program's `__main__` is made."""
    made = type("Tally", (Agent,), {"__module__": "__main__"})
    made.__perdure_program__ = noted  # type: ignore[attr-defined]
    return made


NOTED = "\n    print(*Tally.__perdure_program__, sep='|')"


@pytest.mark.parametrize("name", ["tally.py", "my-tally.py"])
@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_class_of_the_script_that_came_by_value_is_called_as_in_the_script(
    is_guarded: bool, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, code = written(tmp_path / "home", tmp_path / "data/code"), tmp_path / "data/code"
    text = (home / "tally.py").read_text().replace(GUARD, GUARD + NOTED)
    (home / name).write_text(text)
    if not is_guarded:
        (home / name).write_text(text.replace('if __name__ == "__main__":', "with open(__file__):\n    Runtime()"))
        (home / name).write_text((home / name).read_text().replace("class Tally", "Runtime = list\nclass Tally"))
    there, noted = named_by(home, name)[0].splitlines()
    monkeypatch.setattr(sys, "path", [*sys.path])
    here = by_value(NotedProgram(*noted.split("|")))
    assert type_name(here, code) == type_name(here, tmp_path / "another/code") == there
    assert list(files_for(place_name(here, code), code)) == [name]


def test_a_class_that_came_by_value_from_a_module_that_was_run_is_called_by_the_module() -> None:
    assert type_name(by_value(NotedProgram("house.tally", ""))) == "house.tally:Tally"


@pytest.mark.parametrize(("file", "said"), [("/far/away/tally.py", "which is not on this machine"), ("", "was typed")])
def test_a_class_that_came_by_value_without_its_code_is_asked_for_in_a_module(
    file: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    with pytest.raises(BadRequest, match=rf"{said}.*put the class into a module of its own"):
        type_name(by_value(NotedProgram("", file)))


@pytest.mark.parametrize("is_guarded", some(1, [True, False]))
def test_two_programs_whose_scripts_have_one_name_are_told_that_they_share_a_type(
    is_guarded: bool, tmp_path: Path
) -> None:
    code = tmp_path / "data/code"
    first, second = written(tmp_path / "first", code), written(tmp_path / "second", code)
    for folder in () if is_guarded else (first, second):
        without_guard(folder)
    assert named_by(first, "tally.py") == ("tally:Tally", "")
    assert named_by(second, "tally.py") == ("tally:Tally", ""), "a copy"
    (second / "tally.py").write_text((second / "tally.py").read_text() + "# another\n")
    name, said = named_by(second, "tally.py")
    assert name == "tally:Tally"
    assert (
        f"Tally of {second}/tally.py and Tally of {first}/tally.py are one agent type, tally:Tally, with the same"
        in said
    )
    (first / "tally.py").unlink()
    assert named_by(second, "tally.py") == ("tally:Tally", "")


def test_a_class_that_turns_up_under_another_path_is_told_once_with_what_to_do(tmp_path: Path) -> None:
    code = tmp_path / "code"
    remember_type("shop:Till", "shop:Till", code)
    assert list(mistakable(code)) == []
    remember_type("shop.tills:Till", "shop.tills:Till", code)
    (said,) = mistakable(code)
    assert "shop:Till and shop.tills:Till are two agent types" in said
    assert "write `class Till(Agent, name='shop:Till')`" in said


@pytest.mark.parametrize(
    "places",
    [
        ("billing", "mailing"),
        ("billing", "shop.mailing"),
        ("shop", "shop.mailing"),
        ("billing", "script:{}/mailing.py"),
    ],
)
@pytest.mark.parametrize("is_on_path", [True, False])
def test_two_classes_that_are_both_there_are_two_and_one_that_is_gone_was_moved(
    is_on_path: bool, places: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "code"
    for file in ("billing.py", "mailing.py", "shop/mailing.py", "shop/__init__.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("class Worker: pass")
    for place in places:
        remember_type(*[f"{place.format(tmp_path)}:Worker"] * 2, code)
    assert len(list(mistakable(code))) == 1, "nobody could know"
    if is_on_path:
        monkeypatch.syspath_prepend(tmp_path)
    else:
        (code / "roots.txt").write_text(f"{tmp_path}\n")
    assert list(mistakable(code)) == []
    if is_on_path:
        assert list(mistakable(code, f"{places[0]}:Worker")) == []
    moved = "from mailing import Worker"
    (tmp_path / ("shop/__init__.py" if places[0] == "shop" else "billing.py")).write_text(moved)
    assert len(list(mistakable(code))) == len(list(mistakable(code, f"{places[0]}:Worker"))) == 1


def test_a_moved_class_that_keeps_its_old_name_is_found_where_it_is_now(tmp_path: Path) -> None:
    home, code = tmp_path / "home", tmp_path / "data/code"
    written(home, code, ", name='till:Tally'")
    assert named_by(home, "tally.py")[0] == "till:Tally"
    find = (
        f"import sys; sys.path.remove(''); from pathlib import Path; from perdure.actors.code.naming import load_type;\
print(load_type('till:Tally', Path({str(code)!r})).__module__)"
    )
    assert named_by(tmp_path, "-c", find)[0] == "tally"


def test_a_name_whose_class_is_gone_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(UnknownAgentType, match="no class with name='nobody'"):
        load_type("name:nobody", tmp_path)


@pytest.mark.parametrize("harm", [b"\xff", b"x", b"\t", b"\0"])
def test_a_damaged_line_is_passed_over_and_named_and_written_again(tmp_path: Path, harm: bytes) -> None:
    first, second = ("name:one", "desk:One"), ("name:two", "desk:Two")
    for each in (first, second):
        remember_type(*each, tmp_path)
    whole = (tmp_path / TYPES).read_bytes()
    for place in range(whole.index(b"\n")):
        (tmp_path / TYPES).write_bytes(whole[:place] + harm + whole[place + 1 :])
        assert known_types(tmp_path) in ([second], [first, second])  # the latter if the byte was the same
        assert bool(damaged_lines(tmp_path)) == (known_types(tmp_path) == [second])
        remember_type(*first, tmp_path)
        assert set(known_types(tmp_path)) == {first, second}


def test_a_line_that_was_torn_is_written_again(tmp_path: Path) -> None:
    remember_type("name:one", "desk:One", tmp_path)
    with (tmp_path / TYPES).open("ab") as file:
        file.write(b"\nname:two\tdesk:Two\t0123")
    assert known_types(tmp_path) == [("name:one", "desk:One")]
    assert damaged_lines(tmp_path) == [3]
    remember_type("name:two", "desk:Two", tmp_path)
    assert known_types(tmp_path) == [("name:one", "desk:One"), ("name:two", "desk:Two")]
