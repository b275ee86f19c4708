"""How the tidy tests read the code: modules as syntax trees, and the questions that the rules ask of them.

Every rule yields offenders as `path:line: what is wrong`, so that a failing test is a list to click through. Nothing here imports
the code it reads.
"""

from __future__ import annotations

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "perdure"
IMPORT_PATH = f"{ROOT / '.src'}:{ROOT}"  # for processes that a test starts
FOLDERS = ("policies", "ledger", "actors", "scenarios")  # imports go from right to left
# Rooms that other folders may enter directly, so that the front door loads neither Ray nor a database.
DOORS = frozenset(
    {
        "perdure.ledger.slots",
        "perdure.ledger.store.bucket",
        "perdure.ledger.store.bucket_store",
        "perdure.ledger.store.duckdb_store",
        "perdure.ledger.store.integrity",
        "perdure.ledger.store.memory_store",
        "perdure.ledger.storage.agent_storages",
        "perdure.ledger.storage.records",
        "perdure.ledger.maintenance.backup",
        "perdure.ledger.maintenance.cold_view",
        "perdure.ledger.maintenance.cut",
        "perdure.ledger.maintenance.examination",
        "perdure.ledger.maintenance.restoration",
        "perdure.ledger.maintenance.restore_part",
        "perdure.ledger.maintenance.target",
        "perdure.ledger.maintenance.looking",
        "perdure.actors.link.messages",
        "perdure.actors.link.wire",
        "perdure.actors.sim_world.sim_bucket",
        "perdure.actors.sim_world.simulation",
        "perdure.actors.supervisor.calls",
        "perdure.actors.supervisor.effect_executor",
        "perdure.actors.supervisor.sessions",
        "perdure.actors.ray_world.os_processes",
        "perdure.actors.ray_world.system",
    }
)

Function = ast.FunctionDef | ast.AsyncFunctionDef
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True)
class Import:
    """One name that a module imports. `within` names the function it is imported in, if any."""

    line: int
    module: str
    name: str = ""
    within: str = ""

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]

    @property
    def folder(self) -> str:
        """Which of our folders it comes from, or `tests`; empty for what is not ours."""
        first, _, rest = self.module.partition(".")
        return rest.partition(".")[0] if first == PACKAGE else first * (first == "tests")


@dataclass(frozen=True)
class Source:
    """One Python file, read once, and parsed when somebody asks for its tree."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return parsed(self.text)

    @property
    def module(self) -> str:
        inner = self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return f"{PACKAGE}.{inner}" if self.folder in FOLDERS else inner

    @property
    def folder(self) -> str:
        return self.path.partition("/")[0]

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def at(self, line: int, what: str) -> str:
        return f"{self.path}:{line}: {what}"


@cache
def parsed(text: str) -> ast.Module:
    """The syntax tree of a source. It stays, so the collector need not look at its nodes again: there are millions of them."""
    tree = ast.parse(text)
    gc.freeze()
    return tree


def room(module: str) -> str:
    """The folder in which a module of ours stands, below one of the four: `perdure.actors.host`."""
    return ".".join(module.split(".")[:3])


@cache
def sources(*folders: str) -> tuple[Source, ...]:
    """The Python files of these folders of the checkout, those that git does not know yet included."""
    return tuple(map(_source, sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))))


@cache
def _source(path: Path) -> Source:
    return Source(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))


def own_tests(source: Source) -> list[Function]:
    """The tests of a file."""
    is_collected = Path(source.path).name.startswith("test_")
    return [
        node
        for node in source.tree.body
        if is_collected and isinstance(node, Function) and node.name.startswith("test_")
    ]


@cache
def named_tests() -> dict[str, list[str]]:
    """Where each test is: a test that is named elsewhere is named without its file, so that it may move."""
    found = defaultdict(list)
    for source in sources("tests"):
        for test in own_tests(source):
            found[test.name].append(source.path)
    return found


@cache
def imports(source: Source) -> tuple[Import, ...]:
    """Everything a module imports, wherever in it. Relative imports are resolved."""
    return tuple(_imports(source))


def _imports(source: Source) -> Iterator[Import]:
    for node, within in _statements(source.tree, ""):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, within=within) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = ".".join(filter(None, [_anchor(source, node.level), node.module]))
            yield from (Import(node.lineno, module, alias.name, within) for alias in node.names)


def _anchor(source: Source, level: int) -> str:
    parts = [PACKAGE, *source.path.removesuffix(".py").split("/")]
    return ".".join(parts[:-level]) if level else ""


def _statements(node: ast.AST, within: str) -> Iterator[tuple[ast.AST, str]]:
    """Every statement below, and what else holds statements, with the function it stands in."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child, within
            yield from _statements(child, child.name if isinstance(child, Function) else within)


def functions(source: Source) -> Iterator[Function]:
    """All functions and methods, nested ones too."""
    return (node for node in ast.walk(source.tree) if isinstance(node, Function))


def against_the_arrow(source: Source) -> Iterator[str]:
    allowed = FOLDERS[: FOLDERS.index(source.folder) + 1]
    for each in imports(source):
        if each.folder in {*FOLDERS, "tests"} - {*allowed}:
            yield source.at(each.line, f"{source.folder} must not import {each.module}")


def past_the_door(source: Source) -> Iterator[str]:
    for each in imports(source):
        foreign = each.folder in FOLDERS and each.folder != source.folder
        door = f"{PACKAGE}.{each.folder}"
        if foreign and each.module not in {door, *DOORS}:
            yield source.at(each.line, f"import it from `{door}`, not from `{each.module}`")


def private_imports(source: Source) -> Iterator[str]:
    for each in imports(source):
        if any(part.startswith("_") and not part.startswith("__") for part in each.path.split(".")):
            yield source.at(each.line, f"`{each.path}` is private to its module")


def lazy_imports(source: Source) -> Iterator[str]:
    for each in imports(source):
        if each.within and each.folder in FOLDERS:
            yield source.at(each.line, f"`{each.within}` imports `{each.path}`; import it at the top")


def imports_of(source: Source, *tops: str) -> Iterator[str]:
    for each in imports(source):
        if each.top in tops:
            yield source.at(each.line, f"imports `{each.path}`")


IMPURE_MODULES = (
    "asyncio io logging os pathlib random secrets shutil socket subprocess sys tempfile threading time uuid".split()
)
IMPURE_CALLS = frozenset({"open", "input", "print"})
CLOCK_READS = frozenset({"now", "utcnow", "today"})


def impurities(source: Source) -> Iterator[str]:
    """What a pure module may not touch: clocks, dice, files, the environment, logs, threads, and whatever is awaited."""
    yield from imports_of(source, *IMPURE_MODULES)
    for node in ast.walk(source.tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                yield source.at(node.lineno, f"calls `{name}`")
            case ast.Attribute(value=ast.Name(id="datetime" | "date"), attr=name) if name in CLOCK_READS:
                yield source.at(node.lineno, f"reads the clock by `{name}`")
            case ast.AsyncFunctionDef() | ast.Await():
                yield source.at(node.lineno, "awaits")


def body_lines(function: Function) -> int:
    """The lines of a function below its docstring, blank ones and comments included."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def depth(node: ast.AST) -> int:
    """How deep blocks nest inside a function. An `elif` is no deeper than its `if`; inner functions count for themselves."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, SCOPES):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        step = isinstance(child, BLOCKS) and not is_elif
        deepest = max(deepest, depth(child) + step)
    return deepest


def swallowing_handlers(source: Source) -> Iterator[int]:
    """The lines of broad `except` clauses that end an exception there, instead of raising again or telling a future."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type) and not _passes_on(node):
            yield node.lineno


def _is_broad(caught: ast.expr | None) -> bool:
    match caught:
        case None | ast.Name(id="Exception" | "BaseException"):
            return True
        case ast.Tuple(elts=kinds):
            return any(_is_broad(kind) for kind in kinds)
    return False


def _passes_on(handler: ast.ExceptHandler) -> bool:
    reaches_a_future = any(
        isinstance(node, ast.Attribute) and node.attr == "set_exception" for node in ast.walk(handler)
    )
    return isinstance(handler.body[-1], ast.Raise) or reaches_a_future


def task_starts(source: Source) -> Iterator[str]:
    """Where asyncio is asked to start a task."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and node.attr in {"create_task", "ensure_future", "TaskGroup"}:
            yield source.at(node.lineno, f"starts a task by `{node.attr}`")


_PLACE_IN_WORDS = re.compile(
    r"`(?:perdure\.)?((?:actors|policies|scenarios|ledger(?!\.(?:db|journal|mirror)\b))(?:\.\w+)+)(?:\(\))?`"
)


def dangling(files: Sequence[Source]) -> Iterator[str]:
    """Where comments and docstrings name a module of ours that there is not, or a name that the module has not."""
    named = {file.module.removeprefix("perdure."): file for file in files}
    rooms = {module.rpartition(".")[0] for module in named}
    for file in files:
        for number, line in enumerate(file.lines, 1):
            for place in _PLACE_IN_WORDS.findall(line):
                module, _, name = place.rpartition(".")
                known = place in named or place in rooms
                if not known and not (module in named and re.search(rf"\b{name}\b", "\n".join(named[module].lines))):
                    yield file.at(number, f"`{place}` is not there")


RUN_RECORD = "ledger/run.py"


def changed_runs(source: Source) -> Iterator[str]:
    """Where the record of a run is changed outside of its own module: an attribute of `run` or of an item of `runs`, or a slot."""
    if source.folder not in ("ledger", "scenarios") and not source.path.startswith("actors/supervisor/"):
        return  # elsewhere `run` is what an author or a client sees
    for node in ast.walk(source.tree):
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [getattr(node, "target", None)]
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(each, ast.Attribute | ast.Subscript) and _is_of_a_run(each) and source.path != RUN_RECORD:
                    yield source.at(each.lineno, f"changes `{ast.unparse(each)}`, which only {RUN_RECORD} may")


def _is_of_a_run(target: ast.Attribute | ast.Subscript) -> bool:
    match target.value:
        case ast.Attribute(attr="slots" | "milestones" | "options"):
            return True
        case ast.Name(id="run") | ast.Subscript(value=ast.Attribute(attr="runs")):
            return isinstance(target, ast.Attribute)
    return False


AT_A_GLANCE = 20
"""Lines of our own that are read sooner than described, if their name says what they are for."""


def undocumented(source: Source) -> Iterator[str]:
    """Modules, public classes and public functions that say nothing about themselves: what authors use always, and what is our own unless
    it is read at a glance. An empty file has nothing to say."""
    if source.tree.body and ast.get_docstring(source.tree) is None:
        yield source.at(1, "the module has no docstring")
    yield from _undocumented_in(source, source.tree, "", frozenset())


def _undocumented_in(source: Source, parent: ast.AST, prefix: str, inherited: frozenset[str]) -> Iterator[str]:
    is_ours = prefix.rstrip(".") not in _for_authors()
    for node in ast.iter_child_nodes(parent):
        if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
            continue
        speaks = node.name in inherited or _speaks_elsewhere(node, is_ours=is_ours and node.name not in _for_authors())
        if ast.get_docstring(node) is None and not speaks:
            yield source.at(node.lineno, f"`{prefix}{node.name}` has no docstring")
        if isinstance(node, ast.ClassDef):
            yield from _undocumented_in(source, node, f"{prefix}{node.name}.", _described_by_bases(node))


def _speaks_elsewhere(node: Function | ast.ClassDef, *, is_ours: bool) -> bool:
    """An override is described where it is declared, a setter by its getter, a single statement by itself."""
    marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
    is_statement = isinstance(node, Function) and len(node.body) == 1
    is_short = is_ours and (node.end_lineno or 0) - node.body[0].lineno < AT_A_GLANCE
    return is_statement or is_short or bool(marks & {"override", "overload", "setter", "deleter"})


@cache
def _for_authors() -> frozenset[str]:
    """The names that authors import, and the classes from which those inherit."""
    package = parsed((ROOT / ".src/perdure/__init__.py").read_text("utf-8"))
    found = {each.name for node in ast.walk(package) if isinstance(node, ast.ImportFrom) for each in node.names}
    return frozenset(found).union(*(_bases_of(name) for name in found))


def _bases_of(name: str) -> frozenset[str]:
    bases = [ast.unparse(each).partition("[")[0] for each in _classes()[name].bases] if name in _classes() else []
    return frozenset(bases).union(*(_bases_of(each) for each in bases))


def _described_by_bases(node: ast.ClassDef) -> frozenset[str]:
    bases = [_classes()[name] for name in map(ast.unparse, node.bases) if name in _classes()]
    return frozenset().union(*(_described_in(base) | _described_by_bases(base) for base in bases))


def _described_in(node: ast.ClassDef) -> frozenset[str]:
    return frozenset(each.name for each in node.body if isinstance(each, Function) and ast.get_docstring(each))


@cache
def _classes() -> dict[str, ast.ClassDef]:
    trees = (source.tree for source in sources(*FOLDERS))
    return {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


MACHINE_PATH = re.compile(r"(?<![\w.~*-])/(?:work|tmp|home|root|Users)/\w")


def anys(source: Source) -> Iterator[int]:
    """The lines of code that name `Any`, the type of what nobody checks."""
    named = (node for node in ast.walk(source.tree) if isinstance(node, ast.Name) and node.id == "Any")
    yield from sorted({node.lineno for node in named})


def machine_paths(path: str, text: str) -> Iterator[str]:
    """Lines that name a place which exists on somebody's machine only."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := MACHINE_PATH.search(line):
            yield f"{path}:{number}: `{found.group()}…`"


def waits_and_mocks(source: Source) -> Iterator[str]:
    """What a test outside tests/cluster may not do: sleep for real, mock, or bring in Ray."""
    yield from imports_of(source, "ray", "mock", "pytest_mock")
    for each in imports(source):
        if each.path.startswith("unittest.mock") or each.path == "time.sleep":
            yield source.at(each.line, f"imports `{each.path}`")
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute(value=ast.Name(id="time"), attr="sleep"):
                yield source.at(node.lineno, "sleeps")
