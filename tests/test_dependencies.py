"""What the code imports and what pyproject.toml declares are the same, both ways."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from itertools import chain

import pytest

from tests import tidy
from tests.tidy import FOLDERS, ROOT, sources

OURS = {"perdure", "tests", *FOLDERS}
NEWER = {"annotationlib"}  # of Python 3.14
# Declared, and not imported by what declares it.
USED_OTHERWISE = {
    "uvloop": "the event loop of Ray's actors, which take it when it is there",
    "tzdata": "the data of zoneinfo, where the system has none",
    **dict.fromkeys(("grpcio", "grpcio-reflection", "numpy"), "what Ray Serve imports"),
    "ruff": "a command",
    "mypy": "a command",
    "pyright": "a command",
}


# Packages by what is imported of each, where a name is shared, or another than theirs. The longest name counts.
NAMED = {
    "restate": "restate-sdk",
    "opentelemetry": "opentelemetry-api",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.proto": "opentelemetry-proto",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
}
EXTRAS = {  # modules that are loaded only where an extra is installed
    "actors/telemetry/otlp.py": "telemetry",
    "actors/mcp_server/server.py": "mcp",
    "actors/mcp_server/transports.py": "mcp",
    "scenarios/bench/browser.py": "browser",
    "scenarios/bench/dbos_children.py": "dbos",
    "scenarios/bench/restate_children.py": "restate",
    "ledger/store/bucket.py": "bucket",
}


@cache
def declared(extra: str = "") -> frozenset[str]:
    """The names of the distributions that an installation brings, or of those that an extra adds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return frozenset(normal(re.split(r"[\[<>=!~;]", each)[0]) for each in wanted)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).strip().lower()


def imported(files: Iterable[tidy.Source]) -> dict[str, set[str]]:
    """The distributions that these files import, each with the places where they do."""
    known, found = _distributions(), dict[str, set[str]]()
    for file in files:
        for each in tidy.imports(file):
            if each.top not in {*sys.stdlib_module_names, *NEWER, *OURS}:
                for name in _providers(each, known):
                    found.setdefault(normal(name), set()).add(file.at(each.line, f"imports `{each.path}`"))
    return found


@cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


def _providers(each: tidy.Import, known: Mapping[str, list[str]]) -> set[str]:
    """The distributions that an import may come from."""
    shared = [name for name in NAMED if f"{each.path}.".startswith(f"{name}.")]
    return {NAMED[max(shared, key=len)]} if shared else set(known.get(each.top, [each.top]))


def surface() -> list[tidy.Source]:
    """The modules of the package itself, outside the four folders."""
    return [
        tidy.Source(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
        for path in sorted((ROOT / ".src" / "perdure").glob("*.py"))
    ]


def offences(found: dict[str, set[str]], allowed: Iterable[str]) -> str:
    return "\n".join(
        f"{place}, and {name} is not declared" for name in found.keys() - set(allowed) for place in found[name]
    )


def test_the_package_imports_only_what_an_installation_brings() -> None:
    said = offences(imported(file for file in [*sources(*FOLDERS), *surface()] if file.path not in EXTRAS), declared())
    assert not said, said


def test_the_modules_of_an_extra_import_all_of_it_and_nothing_else() -> None:
    for extra in set(EXTRAS.values()):
        found = imported(file for file in sources(*FOLDERS) if EXTRAS.get(file.path) == extra)
        assert not offences(found, declared() | declared(extra))
        assert declared(extra) - {"pydantic-ai-slim"} <= found.keys()  # which has its own way to MCP


def test_a_gateway_loads_no_module_of_an_extra() -> None:
    absent = ["perdure." + path.removesuffix(".py").replace("/", ".") for path in EXTRAS]
    asked = f"import sys; sys.modules.update(dict.fromkeys({absent})); from perdure.gateway import Gateway; Gateway(opener=print)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_commands_and_their_help_need_no_extra() -> None:
    absent = sorted({name for extra in EXTRAS.values() for name in declared(extra)} - declared())
    asked = (
        f"import sys; sys.modules.update(dict.fromkeys({absent})); from perdure.scenarios.cli import Commands\n"
        "for name, entry in Commands.entries.items(): entry.taken(name)"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_requirement_says_the_lowest_version_that_will_do() -> None:
    # Else the lowest version that .ci/run tries is the first there ever was.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    assert [each for each in wanted if ">=" not in each] == []


def test_the_tests_import_only_what_the_test_extra_adds() -> None:
    said = offences(imported(sources("tests")), declared() | declared("test"))
    assert not said, said


def test_what_is_declared_is_imported() -> None:
    package, tests = imported([*sources(*FOLDERS), *surface()]), imported(sources("tests"))
    assert declared() - package.keys() - USED_OTHERWISE.keys() == set()
    of_extras = {name for extra in EXTRAS.values() for name in declared(extra)}
    assert declared("test") - tests.keys() - of_extras - USED_OTHERWISE.keys() == set()
    assert not USED_OTHERWISE.keys() & package.keys()
    assert USED_OTHERWISE.keys() <= declared() | declared("test") - tests.keys()


def test_the_same_versions_of_python_are_promised_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = [each.rpartition(" ")[2] for each in project["classifiers"] if " :: 3." in each]
    first, last = named[0], named[-1]
    assert named == [f"3.{minor}" for minor in range(int(first[2:]), int(last[2:]) + 1)]
    assert project["requires-python"] == f">={first},<3.{int(last[2:]) + 1}"
    page = (ROOT / "README.md").read_text("utf-8")
    assert f"Python {', '.join(named[:-1])} or {last}" in page
    assert f"Python {first} to {last} have been tried" in page


@pytest.mark.parametrize("module", ["perdure", "perdure_build"])  # what a checkout's user imports, and what pip does
def test_an_older_python_is_refused_in_one_line(module: str) -> None:
    asked = f"import sys; sys.version_info = (3, 10, 13, 'final', 0); sys.path.insert(0, {str(ROOT / '.src')!r}); import {module}"
    done = subprocess.run([sys.executable, "-Sc", asked], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("Perdure needs Python 3.11 or later; this is Python 3.10.13")
    assert len(done.stderr.splitlines()) == 1 or module == "perdure"
