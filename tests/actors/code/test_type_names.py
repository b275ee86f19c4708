"""Durable names of agent types: from a class itself, or from the place of its code, and what is told when two could be meant as one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from perdure.actors import Agent, exposed
from perdure.actors.code.known_types import TYPES, damaged_lines, known_types, mistakable, remember_type
from perdure.actors.code.naming import load_type, type_name
from perdure.ledger import BadRequest, UnknownAgentType, agent_id, parent_of, sub_agent_id, type_of
from tests.kit import Stage, play
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


def test_an_agent_of_such_a_class_is_called_and_wakes_again() -> None:
    async def story(stage: Stage) -> None:
        assert await stage.call(Counter, "count") == 1
        await stage.until(lambda: not stage.view.agents)
        assert await stage.call(Counter, "count") == 2

    play(story)


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


def test_a_class_that_turns_up_under_another_path_is_told_once_with_what_to_do(tmp_path: Path) -> None:
    code = tmp_path / "code"
    remember_type("shop:Till", "shop:Till", code)
    assert list(mistakable(code)) == []
    remember_type("shop.tills:Till", "shop.tills:Till", code)
    (said,) = mistakable(code)
    assert "shop:Till and shop.tills:Till are two agent types" in said
    assert "write `class Till(Agent, name='shop:Till')`" in said


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
