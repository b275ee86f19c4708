from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace

import pytest

from perdure.actors.code.naming import load_type, prefer_sent, refuse_while_loading, type_name
from perdure.ledger import BadRequest, UnknownAgentType
from tests.tidy import IMPORT_PATH

ROOT = Path(__file__).resolve().parents[3]
NAME = "from perdure.actors.code.naming import type_name; print(type_name({}, __import__('pathlib').Path({!r})))"


class Outer:
    class Inner:
        """Named by its whole way."""


def moved() -> None:
    """Not a class."""


def run(*arguments: str | Path, stdin: str | None = None, path: Path = ROOT) -> str:
    """Start a Python of its own and return what it wrote, or the last line of why it failed."""
    command = [sys.executable, *map(str, arguments)]
    environment = {"PYTHONPATH": f"{IMPORT_PATH}:{path}"}
    done = subprocess.run(command, input=stdin, env=environment, cwd=path, capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip().splitlines()[-1]


def play(text: str, module: ModuleType, file: str = "<text>") -> None:
    """Run a text as the body of a module."""
    exec(compile(text, file, "exec"), module.__dict__)  # noqa: S102 - that is how modules come into being


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text), encoding="utf-8")
    return path


# ---------------------------------------------------------------- modules


def importable(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of this text, which has not been imported."""
    write(path, text)
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.delitem(sys.modules, path.stem, raising=False)


@pytest.mark.parametrize("cls", [Outer, Outer.Inner, BadRequest, Path, int])
def test_an_importable_class_goes_by_its_module(cls: type) -> None:
    name = type_name(cls)
    assert name == f"{cls.__module__}:{cls.__qualname__}"
    assert load_type(name) is cls


def test_a_class_inside_a_function_is_refused() -> None:
    class Local:
        """Nobody else can find it."""

    with pytest.raises(BadRequest, match=r"agent_type: .*Local is defined inside a function"):
        type_name(Local)


def test_what_is_no_class_is_refused() -> None:
    with pytest.raises(BadRequest, match="is not a class; pass the class itself"):
        type_name(moved)  # type: ignore[arg-type]


def test_a_class_whose_name_now_means_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Outer
    monkeypatch.setattr(sys.modules[__name__], "Outer", Path)
    with pytest.raises(BadRequest, match="defined again"):
        type_name(old, Path("nothing-of-it-is-remembered"))


def test_a_module_without_a_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("from_nowhere")
    play("class Agent: pass", module)
    monkeypatch.setitem(sys.modules, "from_nowhere", module)
    with pytest.raises(BadRequest, match="has no file"):
        type_name(module.Agent)


def test_a_module_is_found_again_where_it_was_though_it_is_not_on_the_import_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "lib/far_away/agents.py", "class Agent: pass")
    code = tmp_path / "code"
    assert run("-c", "import far_away.agents as m; " + NAME.format("m.Agent", str(code)), path=tmp_path / "lib") == (
        "far_away.agents:Agent"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(UnknownAgentType, match="cannot be imported: ModuleNotFoundError"):
        load_type("far_away.agents:Agent")
    assert load_type("far_away.agents:Agent", code).__name__ == "Agent"


def test_a_file_that_nobody_could_import_goes_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "loose.py", "class Agent: pass")
    module = ModuleType("loaded.by.hand")
    module.__file__ = str(file)
    play(file.read_text(encoding="utf-8"), module, str(file))
    monkeypatch.setitem(sys.modules, "loaded.by.hand", module)
    name = type_name(module.Agent)
    assert name == f"script:{file}:Agent"
    assert type_name(load_type(name)) == name


@pytest.mark.parametrize(
    ("text", "name", "problem"),
    [
        ("", "Agent", "is not the name of an agent type"),
        ("", ":Agent", "is not the name of an agent type"),
        ("", "broken:", "is not the name of an agent type"),
        ("", "no_such_module:Agent", "cannot be imported: ModuleNotFoundError"),
        ("class Agent(:", "broken:Agent", "cannot be imported: SyntaxError"),
        (
            "raise RuntimeError('no key')",
            "broken:Agent",
            "cannot be imported: RuntimeError: no key; what only the program that",
        ),
        ("raise SystemExit(3)", "broken:Agent", "cannot be imported: SystemExit: 3"),
        ("class Other: pass", "broken:Agent", "there is no Agent in .*broken.py"),
        ("def Agent(): pass", "broken:Agent", "is not a class"),
        ("", "cell:0123:Agent", "the text of the notebook cell 0123 is not in the code directory"),
    ],
)
def test_a_type_that_cannot_be_loaded_says_why(
    text: str, name: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importable(tmp_path / "broken.py", text, monkeypatch)
    with pytest.raises(UnknownAgentType, match=problem) as refused:
        load_type(name)
    assert refused.value.field == "agent_type"


@pytest.mark.parametrize(
    ("text", "name", "is_advised"),
    [
        ("import no_such_module", "broken:Agent", True),
        ("from sys import no_such_name", "broken:Agent", True),
        ("raise RuntimeError('this loop cannot be patched')", "broken:Agent", True),
        ("raise ImportError('no licence')", "broken:Agent", True),
        ("", "no_such_module:Agent", False),
        ("", "no_such_package.module:Agent", False),
        ("class Agent(:", "broken:Agent", False),
    ],
)
def test_what_fails_at_the_top_of_a_program_is_told_with_where_to_put_what_hosts_do_not_need(
    text: str, name: str, is_advised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importable(tmp_path / "broken.py", text, monkeypatch)
    with pytest.raises(UnknownAgentType, match="cannot be imported") as refused:
        load_type(name)
    assert str(refused.value).endswith('belongs under `if __name__ == "__main__":`') == is_advised


def test_a_module_that_failed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownAgentType):
        load_type("mended_later:Agent", tmp_path)
    write(tmp_path / "mended_later.py", "class Agent: pass")
    assert load_type("mended_later:Agent", tmp_path).__name__ == "Agent"


def test_two_threads_import_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose modules need each other cannot be imported by two threads at once."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "patient.py").write_text(
        dedent("""
            import threading
            from perdure.actors.chat.model import load_library
            load_library("")  # so that nothing but its turn is left to wait for
            other = threading.Thread(target=load_library, args=("",))
            other.start()
            other.join(0.5)
            class Waited: others = other.is_alive()
        """)
    )
    waited = load_type("patient:Waited")
    sys.modules["patient"].other.join()
    assert vars(waited)["others"]


def test_code_that_starts_a_runtime_when_it_is_imported_is_told_so(tmp_path: Path) -> None:
    refuse_while_loading()
    script = write(
        tmp_path / "eager.py",
        """
        from perdure.actors.code.naming import refuse_while_loading
        refuse_while_loading()
        class Agent: pass
        if __name__ == "__main__": pass
        """,
    )
    with pytest.raises(UnknownAgentType, match="put that under `if __name__"):
        load_type(f"script:{script}:Agent")
    refuse_while_loading()


# ---------------------------------------------------------------- scripts

SCRIPT = """
from __future__ import annotations
import dataclasses, pathlib
from beside import GREETING

@dataclasses.dataclass
class Agent:
    greeting: str = GREETING
    other: Agent | None = None

if __name__ == "__main__":
    from perdure.actors.code.naming import type_name
    print(type_name(Agent))
    pathlib.Path("ran").touch()
"""


def test_a_script_is_loaded_again_without_running_its_main_block(tmp_path: Path) -> None:
    write(tmp_path / "beside.py", "GREETING = 'hello'")
    script = write(tmp_path / "not-a-module.py", SCRIPT)
    name = run(script, path=tmp_path)
    assert name == f"script:{script}:Agent"
    (tmp_path / "ran").unlink()

    loaded = load_type(name)

    assert loaded().greeting == "hello"
    assert type_name(loaded) == name
    assert not (tmp_path / "ran").exists()


def test_a_script_without_a_main_block_is_read_for_its_classes_only(tmp_path: Path) -> None:
    script = write(
        tmp_path / "plain.py",
        """
        import pathlib
        from perdure.actors.code.naming import type_name
        HERE = pathlib.Path("plain-ran")
        runtime = Runtime = open
        class Agent:
            limit = 3
            def where(self): return HERE
        Agent.limit = 4
        with Runtime(HERE, "w") as runtime:
            print(type_name(Agent))
        """,
    )
    name = run(script, path=tmp_path)
    (tmp_path / "plain-ran").unlink()
    loaded = load_type(name)
    assert (loaded.limit, loaded().where()) == (4, Path("plain-ran"))
    assert not Path("plain-ran").exists()


def test_a_module_run_by_its_name_goes_by_that(tmp_path: Path) -> None:
    text = "class Agent: pass\nif __name__ == '__main__':\n    " + NAME.format("Agent", str(tmp_path / "code"))
    write(tmp_path / "house/room.py", text)
    assert run("-m", "house.room", path=tmp_path) == "house.room:Agent"


def test_a_script_is_taken_as_it_was_sent_before_it_is_looked_for_at_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write(tmp_path / "home/sent_script.py", "class Agent:\n    at = 'home'")
    write(tmp_path / "sent/sent_script.py", "class Agent:\n    at = 'sent'")
    write(tmp_path / "sent/beside_it.py", "class Agent:\n    at = 'sent too'")
    write(tmp_path / "home/beside_it.py", "")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "home"), *sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr("perdure.actors.code.naming._sent", [])

    prefer_sent(tmp_path / "sent", "0123", tmp_path)

    loaded = load_type(f"script:{place}:Agent")
    assert (loaded.at, type_name(loaded)) == ("sent", f"script:{place}:Agent")
    assert load_type("script:/far/away/sent_script.py:Agent").at == "sent"
    assert load_type("beside_it:Agent").at == "sent too"
    with pytest.raises(UnknownAgentType, match="is not there any more"):
        load_type("script:/far/away/lost.py:Agent")


# ---------------------------------------------------------------- notebooks and prompts


class Notebook:
    """Cells that are run in a `__main__` without a file, as Jupyter does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.main = ModuleType("__main__")
        self.cells = [""]
        self.main.get_ipython = lambda: self  # type: ignore[attr-defined]
        self.user_ns = {"In": self.cells}
        monkeypatch.setitem(sys.modules, "__main__", self.main)

    def transform_cell(self, cell: str) -> str:
        if cell.startswith("%%"):
            magic, _, body = cell.partition("\n")
            return f"get_ipython().run_cell_magic({magic[2:]!r}, '', {body!r})\n"
        return "\n".join("get_ipython()" if line.startswith("%") else line for line in cell.splitlines())

    def run(self, cell: str) -> None:
        self.cells.append(dedent(cell))
        play(self.transform_cell(self.cells[-1]), self.main)

    def run_cell_magic(self, _magic: str, _line: str, body: str) -> None:
        play(self.transform_cell(body), self.main)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    return Notebook(monkeypatch)


def test_a_notebook_s_class_is_found_again_by_its_text(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("%matplotlib inline\nimport math, os\nraised = []")
    notebook.run("FACTOR = 2\ndef double(x): return FACTOR * x\nraised.append(1)")
    notebook.run("def deco(cls):\n    cls.mark = math.floor(2.5)\n    return cls")
    notebook.run("@deco\nclass Agent:\n    # what it is for\n    def work(self, x: 'Other'): return double(x)")
    notebook.run("class Other: pass")
    name = type_name(notebook.main.Agent, tmp_path)

    loaded = load_type(name, tmp_path)

    assert name.startswith("cell:")
    assert name.endswith(":Agent")
    assert (loaded().work(4), loaded.mark) == (8, 2)
    assert type_name(loaded, tmp_path) == name
    text = next(tmp_path.glob("*.py")).read_text(encoding="utf-8")
    assert "# what it is for" in text
    assert "class Other" in text
    assert "raised" not in text


@pytest.mark.parametrize("is_kept_transformed", [True, False])
def test_a_class_in_a_cell_that_is_timed_is_found_by_its_text(
    notebook: Notebook, tmp_path: Path, *, is_kept_transformed: bool
) -> None:
    notebook.run("%%time\n%%capture\nimport math\nclass Agent:\n    def work(self): return math.floor(2.5)")
    if is_kept_transformed:
        notebook.cells[-1] = notebook.transform_cell(notebook.cells[-1])
    loaded = load_type(type_name(notebook.main.Agent, tmp_path), tmp_path)
    assert loaded().work() == 2
    assert "import math" in next(tmp_path.glob("*.py")).read_text(encoding="utf-8")


def test_a_class_in_a_cell_of_another_magic_is_refused_by_the_name_of_that(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("%%bash\npass")
    notebook.run("%%memit\nclass Agent: pass")
    notebook.cells[-1] = notebook.transform_cell(notebook.cells[-1])
    with pytest.raises(BadRequest, match=r"Agent is defined in a cell that begins with `%%memit`;.* a cell without"):
        type_name(notebook.main.Agent, tmp_path)


@pytest.mark.parametrize(
    "left",
    [b"", b"class Agent:\n    lim", b"class Agent:\n    limit = 4", b"class Agent:\n    limit = 3\n\n", b"\xff\xfe"],
)
def test_a_text_that_is_not_the_one_that_was_typed_is_refused_and_written_anew_by_who_uses_it_next(
    notebook: Notebook, tmp_path: Path, left: bytes
) -> None:
    cell = "class Agent:\n    limit = 3"
    notebook.run(cell)
    name = type_name(notebook.main.Agent, tmp_path)
    (file,) = tmp_path.glob("*.py")
    sys.modules.pop(f"perdure_cell_{file.stem}", None)
    file.write_bytes(left)
    with pytest.raises(UnknownAgentType, match=r"changed or damaged.*written anew"):
        load_type(name, tmp_path)
    notebook.run(cell)  # in another life
    assert type_name(notebook.main.Agent, tmp_path) == name
    assert load_type(name, tmp_path).limit == 3  # type: ignore[attr-defined]


def test_other_cells_do_not_change_the_name(notebook: Notebook, tmp_path: Path) -> None:
    cell = "LIMIT = 3\nclass Agent:\n    limit = LIMIT"
    notebook.run(cell)
    first = type_name(notebook.main.Agent, tmp_path)
    notebook.run("class Unrelated: pass\nagent = Agent()\nother = 1")
    notebook.run(cell)
    assert type_name(notebook.main.Agent, tmp_path) == first
    notebook.run("LIMIT = 4")
    notebook.run(cell.replace("3", "5"))
    assert type_name(notebook.main.Agent, tmp_path) != first


def test_what_a_class_uses_of_other_cells_is_taken_as_it_is_when_it_is_asked_for(
    notebook: Notebook, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notebook.run("RATE = 2\nclass Shop: seen = 0")
    notebook.run("def tax(x): return x * RATE")
    notebook.run("class Agent:\n    own = RATE\n    def work(self): return tax(10), Shop.seen")
    taken = [type_name(notebook.main.Agent, tmp_path)]
    for cell in ("other = 4", "RATE = 3", "def tax(x): return RATE", "Shop.seen = 1", "print(RATE)"):
        notebook.run(cell)
        taken.append(type_name(notebook.main.Agent, tmp_path))
        assert load_type(taken[-1], tmp_path)().work() == notebook.main.Agent().work()
        assert load_type(taken[-1], tmp_path).own == 2  # type: ignore[attr-defined]
    assert [one == other for one, other in pairwise(taken)] == [True, False, False, False, True]
    said = [record.message for record in caplog.records]
    assert ["(RATE = 3)" in said[0], "(def tax(x): return RATE)" in said[1], "(Shop.seen = 1)" in said[2]] == [True] * 3
    assert len(said) == 3
    assert "another agent type now, whose agents begin anew; with a name of its own it keeps them" in said[0]


def test_a_class_with_a_name_of_its_own_that_was_typed_again_is_found_as_it_is_now(
    notebook: Notebook, tmp_path: Path
) -> None:
    notebook.run("from perdure import Agent")
    for at in (1, 2, 1):
        notebook.run(f"class Agreed(Agent, name='test-typed-again'): at = {at}")
        assert load_type(type_name(notebook.main.Agreed, tmp_path), tmp_path).at == at  # type: ignore[attr-defined]


def test_a_class_with_a_name_of_its_own_may_be_in_the_texts_of_others(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("from perdure import Agent\nclass TypedChild(Agent, name='test-typed-child'): at = 1")
    notebook.run("class Parent(Agent, name='test-typed-parent'):\n    def at(self): return TypedChild.at")
    child, parent = (type_name(each, tmp_path) for each in (notebook.main.TypedChild, notebook.main.Parent))
    assert load_type(child, tmp_path).at == 1  # type: ignore[attr-defined]
    assert load_type(parent, tmp_path)().at() == 1
    assert load_type(parent, tmp_path) is not notebook.main.Parent


def test_a_class_that_only_runs_takes_what_is_new_without_a_word(
    notebook: Notebook, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notebook.run("RATE = 2\nclass Agent:\n    def run(self): return RATE")
    before = type_name(notebook.main.Agent, tmp_path)
    notebook.run("RATE = 3")
    assert load_type(type_name(notebook.main.Agent, tmp_path), tmp_path)().run() == 3
    assert load_type(before, tmp_path)().run() == 2
    assert not caplog.records


def test_a_class_goes_on_as_it_was_when_another_has_its_name(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("class Agent: at = 1")
    old = notebook.main.Agent
    before = type_name(old, tmp_path)
    notebook.run("class Agent: at = 2")
    assert type_name(old, tmp_path) == before != type_name(notebook.main.Agent, tmp_path)


def test_a_class_whose_global_only_the_program_can_give_goes_on_as_it_was_and_says_so_once(
    notebook: Notebook, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notebook.run("RATE = 2\nRuntime = dict\nclass Agent:\n    def run(self): return RATE")
    before = type_name(notebook.main.Agent, tmp_path)
    notebook.run("RATE = len(Runtime())")
    for _ in range(2):
        notebook.run("2 + 2")
        assert type_name(notebook.main.Agent, tmp_path) == before
    (said,) = (record.message for record in caplog.records)
    assert said.startswith("Agent goes on with the code that it had: Agent cannot be handed over: what was typed,")
    assert "`RATE = len(Runtime())`, gives or changes RATE" in said


def test_what_a_cell_changes_after_a_run_in_it_holds_from_the_next_cell_on(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("RATE = 2\nRuntime = dict\nclass Agent:\n    def run(self): return RATE")
    type_name(notebook.main.Agent, tmp_path)
    notebook.run("class Agent:\n    def run(self): return RATE\nruntime = Runtime()\nRATE = 4")
    with pytest.raises(BadRequest, match="`RATE = 4`, changes RATE after the program has begun its work"):
        type_name(notebook.main.Agent, tmp_path)
    notebook.run("2 + 2")
    assert load_type(type_name(notebook.main.Agent, tmp_path), tmp_path)().run() == 4


def test_a_class_does_not_change_with_imports_that_it_does_not_need(notebook: Notebook, tmp_path: Path) -> None:
    cell = "class Agent:\n    def work(self): return floor(2.5), xml.dom.__name__, xml.sax.__name__"
    notebook.run("from math import floor\nimport xml.dom")
    notebook.run("import xml.sax")
    notebook.run(cell)
    first = type_name(notebook.main.Agent, tmp_path)
    notebook.run("import os, xml.dom\nfrom math import (ceil, floor)  # and one more")
    notebook.run(cell)
    assert type_name(notebook.main.Agent, tmp_path) == first
    assert load_type(first, tmp_path)().work() == (2, "xml.dom", "xml.sax")


def test_what_runs_at_once_keeps_the_definition_that_it_saw(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("class Base: size = 1")
    notebook.run("size = 1\nsize += 1\nclass Agent(Base):\n    own = size\n    def later(self): return helper()")
    notebook.run("class Base: size = 2\nsize = 7\ndef helper(): return 'late'")
    loaded = load_type(type_name(notebook.main.Agent, tmp_path), tmp_path)
    assert (loaded.size, loaded.own, loaded().later()) == (1, 2, "late")


def test_an_import_that_gives_a_name_another_meaning_stays_where_it_is(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("from math import floor as how\nclass Base: first = how(1.5)")
    notebook.run("from math import ceil as how\nfrom math import *\nclass Agent(Base): second = how(1.5), trunc(1.5)")
    loaded = load_type(type_name(notebook.main.Agent, tmp_path), tmp_path)
    assert (loaded.first, *loaded.second) == (1, 2, 1)


def test_a_notebook_s_future_imports_come_first(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("try:\n    import tomllib\nexcept ImportError:\n    tomllib = None")
    notebook.run("from __future__ import annotations\nclass Agent:\n    kind: Unknown = tomllib")
    notebook.cells.append("broken(")
    assert load_type(type_name(notebook.main.Agent, tmp_path), tmp_path).__name__ == "Agent"


def test_a_notebook_s_runtime_is_not_started_again(notebook: Notebook, tmp_path: Path) -> None:
    notebook.main.Runtime = SimpleNamespace  # type: ignore[attr-defined]
    notebook.run("runtime = Runtime(data='x')\nclass Agent:\n    def f(self): return 'runtime'")
    type_name(notebook.main.Agent, tmp_path)
    assert "Runtime" not in next(tmp_path.glob("*.py")).read_text(encoding="utf-8")
    notebook.run("class Agent:\n    def f(self): return runtime")
    with pytest.raises(BadRequest, match=r"line 1, `runtime = Runtime\(data='x'\)`, gives or changes runtime"):
        type_name(notebook.main.Agent, tmp_path)


def test_a_notebook_s_text_needs_a_place(notebook: Notebook) -> None:
    notebook.run("class Agent: pass")
    with pytest.raises(BadRequest, match="no directory to keep its text in"):
        type_name(notebook.main.Agent)


def test_a_prompt_that_keeps_its_lines_is_as_good_as_a_notebook(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "class Agent:\n    at = 'a prompt'\n"
    main = ModuleType("__main__")
    play(text, main)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setitem(
        sys.modules["linecache"].cache, "<python-input-7>", (len(text), None, [text], "<python-input-7>")
    )
    assert load_type(type_name(main.Agent, tmp_path), tmp_path).at == "a prompt"


COMMAND = "class Agent:\n    at = 'a command'\n{}\n"


@pytest.mark.parametrize("way", ["python -c text", "python < file"])
def test_a_command_s_class_is_found_again_by_its_text(way: str, tmp_path: Path) -> None:
    text = COMMAND.format(NAME.format("Agent", str(tmp_path)))
    name = run("-Bc", text) if way.startswith("python -c") else _redirected(write(tmp_path / "in.txt", text))
    assert load_type(name, tmp_path).at == "a command"


def _redirected(file: Path) -> str:
    with file.open() as text:
        return subprocess.run(
            [sys.executable], stdin=text, env={"PYTHONPATH": IMPORT_PATH}, capture_output=True, text=True, check=True
        ).stdout.strip()


def test_text_that_is_lost_is_asked_for_in_a_file(tmp_path: Path) -> None:
    said = run("-", stdin=COMMAND.format(NAME.format("Agent", str(tmp_path))))
    assert said.endswith(
        "agent_type: Agent came through standard input, which does not keep its text; put it into a file"
    )
