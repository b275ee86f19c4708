"""What travels with a class to machines that do not have it: its file and what that imports, and nothing that is installed."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from perdure.actors import Agent, Client
from perdure.actors.chat.tool_run import ToolRun
from perdure.actors.code.naming import cell_file, load_type, prefer_pinned, prefer_sent, type_as_claimed, type_name
from perdure.actors.code.packages import places_file, sources_of, unpacked
from perdure.actors.gateway.client_connection import served
from perdure.actors.life.host_options import pool_spec
from perdure.actors.ray_world.system import system_world
from perdure.actors.runtime import packing
from perdure.actors.runtime.packing import Packer, files_for, needed_here, pack_up, package_file
from perdure.ledger import BadRequest, UnknownAgentType, pool_key, with_package
from perdure.policies import Limits
from perdure.scenarios.cast.census import Reader
from perdure.scenarios.cast.workers import Worker
from tests.actors.one_process import OneProcess
from tests.actors.one_process import play as play_here
from tests.kit import Stage, played

Author = Callable[..., type]


@pytest.fixture(autouse=True)
def _the_tests_themselves_stay(monkeypatch: pytest.MonkeyPatch) -> None:  # a package of theirs takes seconds
    monkeypatch.setattr(packing, "_comes_with_us", lambda cls: cls.__module__.startswith(("perdure.", "tests.")))


@pytest.fixture
def code_dir(tmp_path: Path) -> Path:
    return tmp_path / "home/perdure-data/code"


@pytest.fixture
def author(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Author:
    """Writes files into a directory on the import path, and imports a class from there."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "home"), *sys.path])
    known = set(sys.modules)

    def write(name: str, **files: str) -> type:
        for path, text in files.items():
            file = (tmp_path / "home" / path.replace("__", "/")).with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(dedent(text), encoding="utf-8")
        monkeypatch.setattr(sys, "modules", {key: value for key, value in sys.modules.items() if key in known})
        type_as_claimed.cache_clear()
        return load_type(name)

    return write


def inside(package: str, code_dir: Path) -> dict[str, str]:
    body = io.BytesIO(package_file(package, code_dir).read_bytes())
    with zipfile.ZipFile(body) as archive:
        return {name: archive.read(name).decode(errors="replace") for name in archive.namelist()}


AGENT = "from perdure import Agent\nclass Traveller(Agent): ...\n"


def test_what_a_module_imports_travels_with_it_also_what_it_will_only_import_later(
    author: Author, code_dir: Path
) -> None:
    late = "def later():\n    import packed_late\n    from packed_house import room\n"
    houses = {"packed_house__rooms__hall": "from .. import far", "packed_house__far": "", "packed_late": ""}
    author(
        "packed_main:Traveller",
        packed_main=AGENT + late + "import json, duckdb, perdure.ledger",
        **houses,
        packed_other="",
    )
    (code_dir.parent.parent / "packed_house/rooms/list.txt").write_text("hall")
    (code_dir.parent.parent / "packed_house/.secret").write_text("not code")
    assert sorted(files_for("packed_main:Traveller", code_dir)) == [
        "packed_house/far.py",
        "packed_house/rooms/hall.py",
        "packed_house/rooms/list.txt",
        "packed_late.py",
        "packed_main.py",
    ]


def test_a_script_travels_under_its_own_name_and_a_notebook_needs_only_what_its_text_imports(
    author: Author, code_dir: Path, tmp_path: Path
) -> None:
    author("packed_tool:Path", packed_tool="from pathlib import Path")
    script = tmp_path / "home/packed script.py"
    script.write_text("import packed_tool")
    cell_file("c0ffee", code_dir).parent.mkdir(parents=True)
    cell_file("c0ffee", code_dir).write_text("import packed_tool, os")
    assert sorted(files_for(f"script:{script}:Agent", code_dir)) == ["packed script.py", "packed_tool.py"]
    assert sorted(files_for("cell:c0ffee:Agent", code_dir)) == ["packed_tool.py"]


def test_nothing_travels_for_what_is_installed_or_comes_with_perdure(code_dir: Path) -> None:
    packer = Packer(code_dir)
    assert [packer.package_for(cls) for cls in (Worker, pytest.MonkeyPatch, Path)] == ["", "", ""]
    assert not list(code_dir.glob("*.zip"))


def test_a_process_without_agents_of_its_own_offers_nothing_whatever_lies_where_it_runs(
    code_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = code_dir.parent.parent / "home/scenarios"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(folder.parent))
    packer = Packer(code_dir)
    monkeypatch.setattr("perdure.actors.runtime.packing._subclasses", lambda _cls: [ToolRun, Reader])
    assert type_name(Reader, code_dir) == "perdure.census:Reader"
    assert list(packer.offers()) == []
    assert packer.package_for(Reader) == ""


def test_the_part_of_an_agent_is_told_by_a_digest_that_does_not_depend_on_what_else_is_loaded(
    author: Author, code_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = author("packed_l:Traveller", packed_l=AGENT, packed_r=AGENT)
    right = load_type("packed_r:Traveller")
    monkeypatch.setattr("perdure.actors.runtime.packing._subclasses", lambda _cls: [left])
    ((narrow, alone),) = Packer(code_dir).offers()
    monkeypatch.setattr("perdure.actors.runtime.packing._subclasses", lambda _cls: [left, right])
    ((wide, both),) = Packer(code_dir).offers()
    assert narrow != wide
    assert alone["packed_l"] == both["packed_l"] != both["packed_r"]


def test_the_data_directory_does_not_travel_though_it_lies_in_the_package(author: Author, tmp_path: Path) -> None:
    author("packed_app.agents:Traveller", packed_app__agents=AGENT)
    data = tmp_path / "home/packed_app/data"
    (data / "agents").mkdir(parents=True)
    (data / "agents/one.db").write_text("large")
    assert list(files_for("packed_app.agents:Traveller", data / "code")) == ["packed_app/agents.py"]


def test_the_same_files_make_the_same_package_and_other_files_another_one(author: Author, code_dir: Path) -> None:
    first = Packer(code_dir).package_for(author("packed_one:Traveller", packed_one=AGENT))
    before = package_file(first, code_dir).stat()
    again = Packer(code_dir).package_for(author("packed_one:Traveller", packed_one=AGENT))
    assert (first, before.st_ino) == (again, package_file(first, code_dir).stat().st_ino), "it is written once"
    packer = Packer(code_dir)
    old = author("packed_one:Traveller")
    assert packer.package_for(old) == first
    new = author("packed_one:Traveller", packed_one=AGENT + "# mended\n")
    assert packer.package_for(new) != first
    assert packer.package_for(old) == first, "a package does not change after it was named"
    assert inside(packer.package_for(new), code_dir)["code/packed_one.py"].endswith("# mended\n")


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Runs a cell of a notebook."""
    main, cells = ModuleType("__main__"), ["from perdure import Agent"]
    main.get_ipython = lambda: SimpleNamespace(user_ns={"In": cells})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(cells[0], main.__dict__)  # noqa: S102 - as a notebook does

    def run(cell: str) -> ModuleType:
        cells.append(cell)
        exec(cell, main.__dict__)  # noqa: S102
        return main

    return run


def test_what_a_class_of_a_notebook_uses_since_then_travels_too(
    author: Author, typed: Callable[[str], ModuleType], code_dir: Path
) -> None:
    author("packed_rates:Traveller", packed_rates=AGENT)
    packer = Packer(code_dir)
    cells = (
        "rates = None\nclass Desk(Agent):\n    async def run(self): return rates",
        "import packed_rates as rates",
        "2 + 2",
    )
    packed = [packer.package_for(typed(cell).Desk) for cell in cells]
    assert packed == ["", packed[1], packed[1]]
    assert "code/packed_rates.py" in inside(packed[1], code_dir)


NAMED = "class {0}(Agent, name='test_typed:{0}'):\n    async def run(self): return {1}"


def test_each_text_of_a_typed_class_with_a_name_of_its_own_is_a_version_of_its_code(
    typed: Callable[[str], ModuleType], code_dir: Path
) -> None:
    packer = Packer(code_dir)
    packages, parts = [], []
    typed(NAMED.format("Other", 0))
    for version in (1, 2, 1):
        main = typed(NAMED.format("Desk", version))
        typed(NAMED.format("Last", 0))
        packages.append(packer.package_for(main.Desk))
        parts += [digests["test_typed"] for _, digests in packer.offers() if "test_typed" in digests]
    assert packages == [packages[0], packages[1], packages[0]]
    assert parts == [parts[0], parts[1], parts[0]]
    assert packages[0] != packages[1]
    assert parts[0] != parts[1]
    assert sum("return 1" in text for text in inside(packages[0], code_dir).values()) == 1
    assert not any("return 2" in text for text in inside(packages[0], code_dir).values())


def test_a_typed_class_is_a_version_of_what_it_uses_that_has_a_name_of_its_own_and_of_nothing_else(
    typed: Callable[[str], ModuleType], code_dir: Path
) -> None:
    packer = Packer(code_dir)
    typed(NAMED.format("Desk", 1))
    main = typed("class Clerk(Agent):\n    async def run(self): return Desk.name\nclass Alone(Agent): ...")
    assert [bool(packer.package_for(each)) for each in (main.Clerk, main.Alone)] == [True, False]


def test_a_host_has_that_text_of_a_named_class_that_came_with_its_package(
    typed: Callable[[str], ModuleType], code_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("perdure.actors.code.naming._sent", [])
    packer = Packer(code_dir)
    packages = [packer.package_for(typed(NAMED.format("Desk", version)).Desk) for version in (1, 2)]
    prefer_sent(unpacked(package_file(packages[0], code_dir)), packages[0], code_dir)
    assert asyncio.run(load_type("test_typed:Desk", code_dir)().run()) == 1


def test_agents_that_were_loaded_together_travel_together(author: Author, code_dir: Path) -> None:
    author("packed_left:Traveller", packed_left=AGENT)
    right = author("packed_right:Traveller", packed_right=AGENT + "import packed_left")
    packer = Packer(code_dir)
    left = sys.modules["packed_left"].Traveller
    assert packer.package_for(left) == packer.package_for(right)
    assert {"code/packed_left.py", "code/packed_right.py"} <= set(inside(packer.package_for(left), code_dir))


def test_code_that_is_too_large_to_travel_is_refused_with_the_largest_files(author: Author, code_dir: Path) -> None:
    author("packed_big.agents:Traveller", packed_big__agents=AGENT)
    cargo = code_dir.parent.parent / "packed_big/cargo.bin"
    with cargo.open("wb") as file:
        file.truncate(101 * 1024 * 1024)
    with pytest.raises(BadRequest, match=r"has 10\d MB, and at most 100 MB do; install it .*cargo.bin \(103,424 KB\)"):
        Packer(code_dir).package_for(sys.modules["packed_big.agents"].Traveller)


def test_a_file_that_is_no_python_travels_as_it_is(author: Author, code_dir: Path) -> None:
    author("packed_odd.agents:Traveller", packed_odd__agents=AGENT, packed_odd__template="class {{ name }}(Agent):")
    assert sorted(files_for("packed_odd.agents:Traveller", code_dir)) == [
        "packed_odd/agents.py",
        "packed_odd/template.py",
    ]


class Choosy(Agent):
    runtime_env = {"env_vars": {"A": "1"}}  # noqa: RUF012 - as an author writes it

    async def run(self, input: int) -> int:
        return input


def test_a_package_stands_beside_what_the_class_asks_of_ray_and_makes_a_pool_of_its_own() -> None:
    assert pool_spec(Agent) is None
    assert pool_spec(Agent, "abc") == [0.0, [], '{"package": "abc"}', False]
    assert pool_spec(Choosy) == [0.0, [], '{"env_vars": {"A": "1"}}', False]
    assert pool_spec(Choosy, "abc") == [0.0, [], '{"env_vars": {"A": "1"}, "package": "abc"}', False]


def test_hosts_that_are_kept_warm_with_code_are_of_the_pool_that_agents_with_that_code_ask_for() -> None:
    assert pool_key(with_package(None, "abc")) == pool_key(pool_spec(Agent, "abc")) != pool_key(pool_spec(Agent, "def"))


async def test_a_host_of_a_pool_of_its_own_ends_when_nobody_needs_it_any_more(stage: Stage) -> None:
    def pools() -> list[str]:
        return sorted(pool_key(host.spec) for host in stage.view.hosts.values() if host.up)

    assert (await stage.client.run(Choosy, 3)).output == 3
    await asyncio.sleep(50)
    assert [key for key in pools() if key], "it is kept for a while"
    await asyncio.sleep(20)
    assert pools() == ["", ""], "those for everybody stay"
    assert (await stage.client.run(Choosy, 4)).output == 4


@pytest.mark.parametrize(
    ("wish", "problem"), [("pip", "'pip' is not a mapping"), ({"pip": {1}}, "cannot be sent to Ray")]
)
def test_a_runtime_env_that_ray_could_not_read_is_refused(
    wish: object, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Choosy, "runtime_env", wish)
    with pytest.raises(BadRequest, match=f"runtime_env: .*{problem}"):
        pool_spec(Choosy, "abc")


class SlowPacker(Packer):
    """Goes on packing when it is told to, and records its threads."""

    def __init__(self, code_dir: Path) -> None:
        super().__init__(code_dir)
        self.goes_on = threading.Event()
        self.begun: list[int] = []

    def package_for(self, cls: type) -> str:
        self.begun.append(threading.get_ident())
        assert self.goes_on.wait(60)
        return ""


def test_code_is_packed_once_beside_the_loop_also_if_whoever_asked_first_has_left(code_dir: Path) -> None:
    packer = SlowPacker(code_dir)

    async def story(here: OneProcess) -> list[object]:
        client = Client(system_world(), here, here.limits, code_dir, packer)
        serving = asyncio.create_task(client.serve())
        first, second = (asyncio.create_task(client.run(Worker, {}, run_id=run_id)) for run_id in ("one", "two"))
        await here.until(lambda: bool(packer.begun))  # the loop goes on meanwhile
        first.cancel()
        packer.goes_on.set()
        ended = [first, second]
        await asyncio.wait(ended)
        await client.run(Worker, {}, run_id="three")
        serving.cancel()
        return [each.cancelled() for each in ended]

    assert play_here(story) == [True, False]
    assert len(packer.begun) == 1
    assert packer.begun != [threading.get_ident()]


@pytest.mark.parametrize(
    "given",
    ["Worker", None, len, [Worker], (Worker, {}), object()],
    ids=["text", "None", "function", "list", "tuple", "object"],
)
def test_what_is_no_class_is_refused_before_any_code_is_packed(code_dir: Path, given: Any) -> None:
    async def story(here: OneProcess) -> None:
        client = Client(system_world(), here, here.limits, code_dir, Packer(code_dir))
        async with served(client):
            for ask in (client.run, client.start):
                with pytest.raises(
                    UnknownAgentType, match="not an agent class with a `run` method; pass the class itself"
                ):
                    await ask(given, 1)

    play_here(story)


class Offering(Packer):
    """Has code of this process, or some that cannot travel."""

    def __init__(self, code_dir: Path, problem: BadRequest | None) -> None:
        super().__init__(code_dir)
        self.problem = problem

    def offers(self) -> Iterator[tuple[str, dict[str, str]]]:
        if self.problem is not None:
            raise self.problem
        yield "package", {"module:mine": "digest"}


@pytest.mark.parametrize("problem", [None, BadRequest("agent_class", "it is too large")])
@played(play_here)
async def test_a_gateway_offers_the_code_of_its_process_when_it_opens_and_opens_without_what_cannot_travel(
    here: OneProcess, /, code_dir: Path, problem: BadRequest | None
) -> None:
    client = Client(system_world(), here, Limits(), code_dir, Offering(code_dir, problem))
    async with served(client):
        assert client.limits == here.limits, "those in force there"
        await client.ask("ps")  # comes after what was offered
        assert here.supervisor.view.code.knows("package", "module:mine", "digest") is (problem is None)


def test_a_script_without_a_suffix_is_pinned_with_what_it_imports(author: Author, code_dir: Path) -> None:
    author("packed_beside:Traveller", packed_beside=AGENT)
    script = code_dir.parents[1] / "tool"
    script.write_text("import packed_beside\nclass Tool: pass\n")
    files = needed_here(f"script:{script}:Tool", code_dir, sources_only=True)
    assert sorted(files) == ["packed_beside.py", "tool"]


@pytest.mark.parametrize("way", ["pinned", "sent"])
@pytest.mark.parametrize("kind", ["a module", "a script"])
def test_a_traceback_names_the_author_s_file_and_shows_what_is_executed(
    kind: str, way: str, author: Author, code_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from perdure import Agent\nclass Desk(Agent):\n    def fail(self):\n        raise ValueError('as it was')\n"
    cls = author("packed_desk:Desk", packed_desk=text)
    home = code_dir.parents[1]
    place = "packed_desk:Desk"
    if kind == "a script":
        (home / "my-desk.py").write_text(text)
        place = f"script:{home / 'my-desk.py'}:Desk"
    files = files_for(place, code_dir)
    package = pack_up(files, code_dir)
    for file in files.values():
        file.write_text("# newer\n" * 9)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr("perdure.actors.code.naming._sent", [])
    monkeypatch.setattr("perdure.actors.code.naming._origin_of", [])
    monkeypatch.delitem(sys.modules, cls.__module__)
    type_as_claimed.cache_clear()
    if way == "pinned":
        prefer_pinned(package, code_dir)
    else:
        prefer_sent(unpacked(package_file(package, code_dir)), package, code_dir)

    with pytest.raises(ValueError, match="as it was") as failed:
        load_type(place).fail(None)

    told = "".join(traceback.format_exception(failed.value))
    assert f"File \"{next(iter(files.values()))}\", line 4, in fail\n    raise ValueError('as it was')\n" in told
    assert str(code_dir) not in told


@pytest.mark.parametrize(
    "harm", [lambda _: b"", lambda whole: whole[:-40], lambda whole: whole[:70] + b"\xff" + whole[71:]]
)
def test_a_package_that_is_not_whole_is_told_and_written_anew(
    author: Author, code_dir: Path, harm: Callable[[bytes], bytes]
) -> None:
    author("packed_torn:Desk", packed_torn="from perdure import Agent\nclass Desk(Agent): ...\n" * 9)
    files = files_for("packed_torn:Desk", code_dir)
    package = package_file(pack_up(files, code_dir), code_dir)
    whole = package.read_bytes()
    package.write_bytes(harm(whole))
    with pytest.raises(OSError, match="gone or damaged"):
        unpacked(package)
    assert pack_up(files, code_dir) == package.stem
    assert package.read_bytes() == whole


def test_a_host_mends_what_a_power_cut_left_of_the_code_that_it_had_unpacked(author: Author, code_dir: Path) -> None:
    author("packed_cut:Desk", packed_cut="from perdure import Agent\nclass Desk(Agent): ...\n")
    package = package_file(pack_up(files_for("packed_cut:Desk", code_dir), code_dir), code_dir)
    (module,) = unpacked(package).rglob("packed_cut.py")
    text = module.read_bytes()
    for left in (b"", text[:5], None):
        module.unlink() if left is None else module.write_bytes(left)
        unpacked(package)
        assert [path.read_bytes() for path in module.parent.iterdir()] == [text]


@pytest.mark.parametrize("left", [b"", b"{", b"\xff", b"[1]", b'{"a": 1}'])
def test_a_note_of_places_that_cannot_be_read_is_told_and_written_anew(
    author: Author, code_dir: Path, left: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    author("packed_note:Desk", packed_note="from perdure import Agent\nclass Desk(Agent): ...\n")
    files = files_for("packed_note:Desk", code_dir)
    package = pack_up(files, code_dir)
    note = places_file(package, code_dir)
    whole = note.read_bytes()
    note.write_bytes(left)
    assert sources_of(package, code_dir) == {}
    assert "cannot be read" in caplog.text
    pack_up(files, code_dir)
    assert note.read_bytes() == whole
