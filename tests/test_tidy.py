"""The house rules, kept from the first commit: who may import whom, what pure code may not touch, and how large things may grow.

A rule that hurts is to be argued about here, in one of the lists of named exceptions, and nowhere else.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from statistics import median

import pytest

from tests import tidy
from tests.tidy import FOLDERS, ROOT, Source, sources

OURS = sources(*FOLDERS)
TESTS = sources("tests")

FILE_LINES_MAX = 700
FILE_LINES_MEDIAN_MAX = 220
BODY_LINES_MAX = 50
DEPTH_MAX = 3
ANY_MAX = 10  # lines in a thousand of `actors/`; the goal was 15

TOP_LEVEL = {*FOLDERS, "tests", "pyproject.toml", "ray_cluster.yaml", "README.md"}
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "base", "core", "misc"}

RAY_FOLDER = "actors/ray_world/"
# The modules of the ledger that touch files, threads or the clock. Everything else in `policies` and `ledger` is pure.
IMPURE_IN_LEDGER = {
    "ledger/block_guard.py",
    "ledger/bucket_cache.py",
    "ledger/code_files.py",
    "ledger/directory_format.py",
    "ledger/maintenance/backup.py",
    "ledger/maintenance/cold_view.py",
    "ledger/maintenance/bucket_backups.py",
    "ledger/maintenance/bucket_examination.py",
    "ledger/maintenance/bucket_restoration.py",
    "ledger/maintenance/cut.py",
    "ledger/maintenance/examination.py",
    "ledger/maintenance/listing.py",
    "ledger/maintenance/looking.py",
    "ledger/maintenance/replicated_store.py",
    "ledger/maintenance/storage_changes.py",
    "ledger/replica_settings.py",
    "ledger/maintenance/copies.py",
    "ledger/maintenance/restoration.py",
    "ledger/maintenance/restore_part.py",
    "ledger/maintenance/target.py",
    "ledger/secret.py",
    "ledger/storage/after_power_cut.py",
    "ledger/storage/agent_database.py",
    "ledger/storage/agent_file.py",
    "ledger/storage/agent_storage.py",
    "ledger/storage/agent_storages.py",
    "ledger/in_place.py",
    "ledger/storage/carried_disk.py",
    "ledger/storage/disk.py",
    "ledger/storage/file_disk.py",
    "ledger/storage/log_file.py",
    "ledger/storage/shared_log.py",
    "ledger/storage/shared_segment.py",
    "ledger/storage/sql.py",
    "ledger/storage/this_machine.py",
    "ledger/storage/transaction.py",
    "ledger/store/bucket.py",
    "ledger/store/bucket_past.py",
    "ledger/store/bucket_storages.py",
    "ledger/store/bucket_store.py",
    "ledger/store/duckdb_file.py",
    "ledger/store/duckdb_store.py",
    "ledger/store/lock.py",
    "ledger/store/journal.py",
    "ledger/store/journal_scan.py",
    "ledger/store/integrity.py",
    "ledger/whole_files.py",
    "ledger/values.py",  # it names the types of paths and of UUIDs, and makes none
}

# Modules that import a private name, and why.
PRIVATE_IMPORTERS = {
    "actors/sim_world/virtual_loop.py": "anyio offers no other way to say where the threads of a loop are",
}

# Modules that import one of ours inside a function, and why.
LAZY_IMPORTERS: dict[str, str] = {}

# Imports that close a circle of modules, and why. Those for types count too: whoever reads a module reads what its types come from, so
# a circle has no bottom to begin at. What is lower is given what it needs of a higher one when it is made: as a part, or as a callable.
CIRCULAR: dict[tuple[str, str], str] = {}

# Where a broad `except` may end an exception, how many there are, and why. The counts are exact: the list shrinks with the code.
BROAD_EXCEPTS = {
    "actors/chat/answer_stream.py": (
        1,
        "a provider's stream may break in any way, which changes nothing behind the reason of the answer's end",
    ),
    "actors/code/author_call.py": (2, "an author's code may raise whatever it likes; here it becomes a value"),
    "actors/link/wire.py": (
        1,
        "a frame that cannot be read is read message by message, so that one costs the others nothing",
    ),
    "actors/serve/guard.py": (1, "a request that fails is answered with its error; the gateway lives on"),
    "actors/supervisor/queries.py": (1, "a question that fails is answered with its error; the supervisor lives on"),
    "actors/events/observability.py": (1, "a subscriber is foreign code that only watches"),
    "scenarios/testing/laboratory.py": (
        1,
        "a story may raise whatever it likes: that is a finding, with the seed that shows it",
    ),
    "actors/sim_world/process.py": (
        3,
        "one storage that will not close must not save another; what the dead say is nobody's business",
    ),
    "actors/sim_world/virtual_loop.py": (
        2,
        "nobody hears what a killed coroutine raises; a simulated thread's caller gets its error",
    ),
    "actors/sim_world/simulation.py": (1, "the boundary of a simulated process: it may die of anything"),
}


# Where tasks are started, how often, and why. Elsewhere a task would belong to no life, and nobody would hear of its error.
TASK_STARTS = {
    "actors/tasks.py": (3, "what everybody else uses"),
    "actors/life/waits.py": (1, "none: the code of a group is known when a task waits in it"),
    "actors/sim_world/process.py": (1, "the main task of a simulated process, in a context of its own"),
}


def check(rule: Callable[[Source], Iterable[str]], files: Iterable[Source] = OURS) -> None:
    """Fail with every offender, one a line."""
    report(offender for file in files for offender in rule(file))


def report(complaints: Iterable[str]) -> None:
    """Fail if there are any, with one a line."""
    lines = list(complaints)
    assert not lines, "\n" + "\n".join(lines)


def offenders(rule: Callable[[Source], Iterable[object]], files: Iterable[Source] = OURS) -> dict[str, list[object]]:
    """What a rule finds, by file."""
    found = {file.path: list(rule(file)) for file in files}
    return {path: complaints for path, complaints in found.items() if complaints}


def unlike(what: str, excused: Collection[str], found: dict[str, list[object]]) -> Iterator[str]:
    """Files that break a rule without an excuse, and excuses that nobody needs any more."""
    for path in sorted(found.keys() - excused):
        yield from map(str, found[path])
    yield from (f"{path}:1: is excused, but no longer {what}" for path in sorted(set(excused) - found.keys()))


def test_folders_import_only_what_stands_before_them() -> None:
    check(tidy.against_the_arrow)


def test_folders_meet_at_each_others_front_door() -> None:
    check(tidy.past_the_door)
    entered = {each.module for file in OURS for each in tidy.imports(file) if each.folder != file.folder}
    report(f"nobody enters {door} from another folder" for door in sorted(tidy.DOORS - entered))


def test_modules_do_not_import_each_other_in_circles() -> None:
    names = {file.module for file in OURS}
    loads = {file.module: {_target(each, names) for each in tidy.imports(file)} & names for file in OURS}
    report(f"{module} no longer imports {each}" for module, each in CIRCULAR if each not in loads.get(module, ()))
    _refuse_circles({module: {each for each in its if (module, each) not in CIRCULAR} for module, its in loads.items()})


def test_rooms_do_not_import_each_other_in_circles() -> None:
    """A room is a folder below one of the four, or a file that stands beside such folders."""
    names = {file.module for file in OURS}
    rooms: dict[str, set[str]] = {}
    for file in OURS:
        if not file.path.endswith("__init__.py"):
            targets = {tidy.room(_target(each, names)) for each in tidy.imports(file)}
            rooms.setdefault(tidy.room(file.module), set()).update(targets - {tidy.room(file.module)})
    _refuse_circles(rooms)


def _refuse_circles(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def _target(each: tidy.Import, names: set[str]) -> str:
    return each.path if each.path in names else each.module


def test_ray_stands_in_one_folder() -> None:
    check(lambda file: tidy.imports_of(file, "ray"), [file for file in OURS if not file.path.startswith(RAY_FOLDER)])


def test_duckdb_stands_in_the_ledger_only() -> None:
    check(lambda file: tidy.imports_of(file, "duckdb"), [file for file in OURS if file.folder != "ledger"])


def test_policies_and_the_pure_part_of_the_ledger_touch_no_clock_dice_or_files() -> None:
    inner = [file for file in OURS if file.folder in ("policies", "ledger")]
    report(unlike("is impure", IMPURE_IN_LEDGER, offenders(tidy.impurities, inner)))


def test_a_module_that_calls_itself_pure_does_no_io() -> None:
    check(tidy.impurities, [file for file in OURS if " Pure" in file.text.partition("\n")[0]])


def test_private_names_stay_in_their_module() -> None:
    report(unlike("imports a private name", PRIVATE_IMPORTERS, offenders(tidy.private_imports)))


def test_our_own_modules_are_imported_at_the_top() -> None:
    report(unlike("imports late", LAZY_IMPORTERS, offenders(tidy.lazy_imports)))


def test_no_module_bears_a_name_that_its_folder_loads_late() -> None:
    """Importing the module would put it in the place of the name."""
    rooms = {file.module: file for file in OURS}
    for folder in FOLDERS:
        late = {f"perdure.{folder}.{each.name}" for each in tidy.imports(rooms[f"perdure.{folder}"])}
        assert not late & rooms.keys()


def test_files_are_small() -> None:
    sizes = {file.path: len(file.lines) for file in OURS if file.lines}
    report(f"{path}:1: {size} lines, at most {FILE_LINES_MAX}" for path, size in sizes.items() if size > FILE_LINES_MAX)
    assert median(sizes.values()) <= FILE_LINES_MEDIAN_MAX


def test_functions_are_short() -> None:
    def too_long(file: Source) -> Iterator[str]:
        for function in tidy.functions(file):
            if (size := tidy.body_lines(function)) > BODY_LINES_MAX:
                yield file.at(function.lineno, f"`{function.name}` has {size} lines, at most {BODY_LINES_MAX}")

    check(too_long)


def test_functions_are_flat() -> None:
    def too_deep(file: Source) -> Iterator[str]:
        for function in tidy.functions(file):
            if (levels := tidy.depth(function)) > DEPTH_MAX:
                yield file.at(function.lineno, f"`{function.name}` nests {levels} blocks, at most {DEPTH_MAX}")

    check(too_deep)


def test_a_module_is_named_for_what_it_holds() -> None:
    check(lambda file: [file.at(1, "the name says nothing")] if set(file.module.split(".")) & VAGUE_NAMES else [])


def test_broad_excepts_stand_only_where_they_are_argued_for() -> None:
    found = {path: len(lines) for path, lines in offenders(tidy.swallowing_handlers).items()}
    expected = {path: count for path, (count, _why) in BROAD_EXCEPTS.items()}
    report(
        f"{path}:1: {found.get(path, 0)} broad excepts; {expected.get(path, 0)} are listed"
        for path in sorted(found.keys() | expected.keys())
        if found.get(path) != expected.get(path)
    )


def test_few_lines_have_a_type_that_nobody_checks() -> None:
    ours = [source for source in OURS if source.path.startswith("actors/")]
    lines = sum(
        bool(line.strip()) and not line.lstrip().startswith("#") for each in ours for line in each.text.splitlines()
    )
    share = 1_000 * sum(len(list(tidy.anys(source))) for source in ours) / lines
    assert share <= ANY_MAX


def test_every_task_of_the_runtime_belongs_to_a_life() -> None:
    found = {file.path: len(list(tidy.task_starts(file))) for file in OURS if file.folder == "actors"}
    assert {path: count for path, count in found.items() if count} == {
        path: count for path, (count, _why) in TASK_STARTS.items()
    }


def test_the_record_of_a_run_is_changed_by_its_own_module_alone() -> None:
    check(tidy.changed_runs)


def test_whatever_is_public_says_what_it_is() -> None:
    check(tidy.undocumented)


def test_what_comments_and_docstrings_name_is_there() -> None:
    report(tidy.dangling(OURS))


def test_a_module_that_is_named_and_is_not_there_is_found() -> None:
    files = [
        Source("ledger/a.py", "'As `ledger.a.f()`, and `ledger.db`.'\ndef f(): pass"),
        Source("actors/b.py", "# `ledger.gone`"),
    ]
    assert [said.partition(":")[0] for said in tidy.dangling(files)] == ["actors/b.py"]


def test_the_top_level_holds_what_the_design_names_and_nothing_else() -> None:
    tops = {path.partition("/")[0] for path in _files_that_git_sees()}
    assert {top for top in tops if not top.startswith(".")} == TOP_LEVEL


def test_nothing_names_a_place_on_somebodys_machine() -> None:
    paths = [path for path in _files_that_git_sees() if path.endswith((".py", ".sql", ".toml", ".yaml", ".md", "/run"))]
    report(line for path in paths for line in tidy.machine_paths(path, (ROOT / path).read_text("utf-8")))


def test_the_tests_that_ci_names_are_there() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    named = re.findall(r"tests/[\w/]+(?:\.py)?", script)
    assert "tests/actors/runtime/test_cells.py" in named
    assert [path for path in named if not (ROOT / path).exists()] == []


def _files_that_git_sees() -> list[str]:
    """Committed or about to be; what .gitignore names is left out."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for path in found.stdout.splitlines() if (ROOT / path).is_file()]


def test_tests_outside_the_cluster_folder_neither_sleep_nor_mock_nor_import_ray() -> None:
    check(tidy.waits_and_mocks, [file for file in TESTS if not file.path.startswith("tests/cluster/")])


Rule = Callable[[Source], Iterator[object]]
BITES: dict[Rule, tuple[str, str]] = {
    tidy.against_the_arrow: ("ledger/a.py", "from perdure.actors import Agent"),
    tidy.past_the_door: ("actors/a.py", "from perdure.ledger.facts import Fact"),
    tidy.private_imports: ("actors/a.py", "from perdure.actors.host.host import _turn"),
    tidy.lazy_imports: ("actors/a.py", "def f():\n    from perdure.actors.host import host"),
    tidy.impurities: ("policies/a.py", "def f():\n    return datetime.now()"),
    tidy.swallowing_handlers: ("actors/a.py", "try:\n    f()\nexcept (ValueError, Exception):\n    pass"),
    tidy.task_starts: ("actors/a.py", "asyncio.get_running_loop().create_task(f())"),
    tidy.changed_runs: ("ledger/a.py", "run.host_id, n = '', 1"),
    tidy.undocumented: (
        "actors/a.py",
        "'Here.'\nclass A:\n    'There.'\n    def f(self):\n" + "        g()\n" * (tidy.AT_A_GLANCE + 1),
    ),
    tidy.waits_and_mocks: ("tests/a.py", "import time\ntime.sleep(1)"),
}
SPARES: dict[Rule, tuple[str, str]] = {
    tidy.against_the_arrow: ("actors/a.py", "from perdure.ledger import Fact"),
    tidy.past_the_door: ("actors/a.py", "from perdure.ledger.store.duckdb_store import DuckLedger"),
    tidy.private_imports: ("actors/a.py", "from __future__ import annotations"),
    tidy.lazy_imports: ("actors/a.py", "def f():\n    import json"),
    tidy.impurities: ("policies/a.py", "from datetime import datetime"),
    tidy.swallowing_handlers: ("actors/a.py", "try:\n    f()\nexcept BaseException:\n    g()\n    raise"),
    tidy.task_starts: ("actors/a.py", "life.spawn(f())"),
    tidy.changed_runs: ("ledger/run.py", "run.host_id = ''"),
    tidy.undocumented: ("actors/a.py", "'Here.'\ndef f():\n    g()\n    return 1"),
    tidy.waits_and_mocks: ("tests/a.py", "import asyncio"),
}


@pytest.mark.parametrize("rule", BITES, ids=lambda rule: rule.__name__)
def test_a_rule_bites_what_it_forbids_and_spares_what_it_allows(rule: Rule) -> None:
    assert list(rule(Source(*BITES[rule])))
    assert not list(rule(Source(*SPARES[rule])))


def test_depth_counts_blocks_but_not_the_branches_of_one_decision() -> None:
    nested = "def f():\n for a in b:\n  with a:\n   if a: pass\n   elif b: pass\n   elif c: pass\n   else: pass"
    (function,) = tidy.functions(Source("a.py", nested))
    assert tidy.depth(function) == 3


def test_the_length_of_a_function_leaves_out_its_docstring() -> None:
    (function,) = tidy.functions(Source("a.py", "def f():\n    'One.'\n    a = 1\n\n    return a"))
    assert tidy.body_lines(function) == 3


def test_a_place_on_a_machine_is_told_from_a_web_address() -> None:
    assert list(tidy.machine_paths("a.py", "open('" + "/ho" + "me/ada/x')"))
    assert not list(tidy.machine_paths("a.py", "https://example.org/home/ada and ~/work/x"))
