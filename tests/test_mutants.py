"""The tests can fail: each row of `tests/mutants.py` breaks a promise, and the test that it names notices that.

A mutant is made in a copy of the checkout, never in the checkout itself. Its tests run there in a process of their own: a fork of one that
has imported the libraries already, and none of our code. Every fourteenth row is tried by `-m thorough`, and all of them by `-m long`.

Nobody chose the mutants of the sample: each is a slip at one place of the rooms that talk to clients (`tests.operators`), drawn by a seed.
Only those tests play against it that come to its lines (`tests.reach`), the nearest first. A part of the sample is played with

    SAMPLE_SEED=2 SAMPLE=0:40 REACH=reach.json pytest -n0 -m long tests/test_mutants.py -k sample -s

where `REACH` keeps what the tests reach for the next part. What survives is told by file and line.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mutants import MUTANTS, Mutant
from tests.operators import Change, changes_of, lines_of, slips_of
from tests.reach import ROOMS
from tests.tidy import FOLDERS, ROOT, named_tests

COPIED = (*FOLDERS, "tests", ".src")
TIMEOUT_S = 100  # less than a test may take, so that one that hangs is told by its name
REACH_TIMEOUT_S = 3_600
TESTS_S_MAX = 60.0  # of the tests that are played against one change of the sample, as long as they take without it
SAMPLE = 200
NEAREST = ["-m", "not thorough and not long", "tests/actors/chat", "tests/actors/messenger", "tests/gateway"]
HARMLESS = frozenset(  # changes that no behaviour follows from, each with its file
    {
        ("actors/chat/conversation.py", "0, => 1,"),  # the number of a turn, which it gets when it is accepted
        # a default that passes every check
        (
            "actors/chat/conversation.py",
            (
                'check_number(STALL, told.get(STALL, 0), unit="milliseconds", is_finite=True) => '
                'check_number(STALL, told.get(STALL, 1), unit="milliseconds", is_finite=True)'
            ),
        ),
        # no page names these, and any value of the kind will do
        ("actors/chat/stream.py", "LOOP_TURNS = 10 => LOOP_TURNS = 11"),
        ("actors/chat/model.py", "CONNECT_TIMEOUT_S = 30.0 => CONNECT_TIMEOUT_S = 31.0"),
        ("actors/messenger/deliveries.py", "CALL_S = 30.0 => CALL_S = 31.0"),
        ("actors/messenger/deliveries.py", "HOLD_S = 10.0 => HOLD_S = 11.0"),
        (
            "actors/messenger/deliveries.py",
            (
                "RETRY = FiberRetry(attempts_max=1_000, first_ms=10, most_ms=1_000, on_error=False) => "
                "RETRY = FiberRetry(attempts_max=1_000, first_ms=10, most_ms=1001, on_error=False)"
            ),
        ),
        ("actors/messenger/telegram.py", "TIMEOUT_S: Final = 20.0 => TIMEOUT_S: Final = 21.0"),
        ("actors/chat/answer_stream.py", "IN_A_ROW_MAX: Final = 8 => IN_A_ROW_MAX: Final = 9"),
        ("actors/messenger/ingress.py", "ACCEPT_S: Final = 20.0 => ACCEPT_S: Final = 21.0"),
        ("actors/messenger/ingress.py", "RETRY_AFTER_S: Final = 2 => RETRY_AFTER_S: Final = 3"),
        (
            "actors/chat/chat_messages.py",  # the steps between what fits as it is and what fits at all
            (
                "for keep in (256 * 1024, 64 * 1024, 16 * 1024, 4 * 1024, 1024): => "
                "for keep in (256 * 1024, 64 * 1024, 16 * 1024, 4 * 1025, 1024):"
            ),
        ),
        # twenty digits are more than any limit has; they are cut off because `int` reads no thousands of them
        (
            "actors/gateway/bodies.py",
            (
                "if declared.isdecimal() and int(declared[:20]) > bytes_max: => "
                "if declared.isdecimal() and int(declared[:21]) > bytes_max:"
            ),
        ),
        # what is remembered is made anew, and is the same
        *(
            (
                "actors/chat/history.py",
                f"if known is None or known[0] is not message or known[1] != steps: => if known is None or {changed}:",
            )
            for changed in (
                "known[0] is not message or known[2] != steps",
                "known[1] is not message or known[1] != steps",
            )
        ),
        # one ended turn fewer is remembered, and is read again
        (
            "actors/chat/turns.py",
            "while len(self._recent) > RECENT_MAX: => while len(self._recent) >= RECENT_MAX:",
        ),
        # a burst that is over lasts for a millisecond more
        (
            "actors/messenger/replies.py",
            (
                "left_ms = min(max(0, row.ready_at_ms - self.tenant.now_ms()), burst_ms) => "
                "left_ms = min(max(1, row.ready_at_ms - self.tenant.now_ms()), burst_ms)"
            ),
        ),
        # the last byte of the room for what a message has besides its parts
        ("actors/chat/chat_messages.py", "if room < 0: => if room <= 0:"),
        # an address in the error of the library, which is not read
        (
            "actors/messenger/telegram.py",
            (
                "first = problem.errors(include_url=False, include_input=False)[0] => "
                "first = problem.errors(include_url=True, include_input=False)[0]"
            ),
        ),
        # the feed tells nothing of the row of an open turn, which is left out so that less is read
        (
            "actors/chat/chat_store.py",
            (
                "if version >= number and not (documents is self._turns and self._open.version(key)) => "
                "if version >= number and not (documents is not self._turns and self._open.version(key))"
            ),
        ),
        # the result of a run is kept with the turn already
        (
            "actors/chat/chat_agent.py",
            ("_perdure_recalls_results: ClassVar[bool] = True => _perdure_recalls_results: ClassVar[bool] = False"),
        ),
        # a second guard: the writer of a history gives each call an id of its own
        ("actors/chat/convert.py", "self._call_ids |= _called_ids(history[len(self._untouched) : end]) => pass"),
        # what a stream has still to write is written before the conversation begins again, or fails as its storage did
        ("actors/chat/turns.py", "self.state.rest() => pass"),
        # a second guard: what takes covered steps away takes the summary with them
        (
            "actors/chat/history.py",
            (
                'if partly is None or len(steps_of(partly["parts"])) < summary["steps"]: => '
                'if partly is None and len(steps_of(partly["parts"])) < summary["steps"]:'
            ),
        ),
        # the positions of messages begin at 1, so nothing is at either, or before
        (
            "actors/chat/history.py",
            (
                'summary["after"] = max(after, *map(position, (each["id"] for each in said)), 0) => '
                'summary["after"] = max(after, *map(position, (each["id"] for each in said)), 1)'
            ),
        ),
        # streams have both of these, or neither
        (
            "actors/chat/answer_stream.py",
            (
                'if not is_over and getattr(stream, "_has_refusal", False) and '
                'not getattr(stream, "_has_finish_reason", True): => '
                'if not is_over and getattr(stream, "_has_refusal", True) and '
                'not getattr(stream, "_has_finish_reason", True):'
            ),
        ),
        # at first nothing was said, and with the first words this is set
        ("actors/messenger/deliveries.py", "self.is_recovering = False => self.is_recovering = True"),
        # it is imported with the library
        ("actors/chat/play.py", "if TYPE_CHECKING: => if not (TYPE_CHECKING):"),
        ("actors/gateway/security.py", "@dataclass(frozen=True) => @dataclass(frozen=False)"),  # nobody changes one
        *(
            (
                f"actors/chat/{module}.py",
                "@dataclass(frozen=True, kw_only=True) => @dataclass(frozen=True, kw_only=False)",
            )
            for module in ("tool_schema", "tools")  # whoever makes one names what is given
        ),
    }
)
NOTICED_MIN = 0.9  # of the sample, but for those changes that change no behaviour
ENVIRONMENT = {
    "PYTHONPATH": "",
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "COVERAGE_CORE": "ctrace",
}
COMMAND = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]

WARM = f"""
import json, os, signal, sys
import duckdb, hypothesis, openai, psutil, pydantic_ai.models.openai, pydantic_ai.models.function, pytest, ray, starlette, telegram
import httpx, httpx2, rich, typer, uvicorn, xdist
assert not any(name.partition(".")[0] in ("perdure", "tests") for name in sys.modules)
for line in sys.stdin:
    tests, log, timeout_s = json.loads(line)
    child = os.fork()
    if child == 0:
        signal.alarm(timeout_s)
        said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        try:
            code = int(pytest.main([*{COMMAND!r}, *tests]))
            sys.stdout.flush()
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def changes(file: str) -> list[Change]:
    """All that the operators can do to a file."""
    return changes_of(file, (ROOT / file).read_text("utf-8"))


def places(mutant: Mutant) -> list[Change]:
    """What a row may mean: one change, if the row is right. Of what lies within each other the innermost is meant."""
    lines = lines_of((ROOT / mutant.file).read_text("utf-8"), mutant.symbol)
    found = [
        each
        for each in changes(mutant.file)
        if each.operator == mutant.operator
        and any(first <= each.lines[0] and each.lines[1] <= last for first, last in lines)
        and each.names.issuperset(mutant.reads.split())
    ]
    return [each for each in found if not any(each.is_around(other) for other in found)]


def complaints(mutant: Mutant) -> Iterator[str]:
    """What is wrong with a row, as the code is now."""
    if not (ROOT / mutant.file).exists():
        yield f"there is no {mutant.file}: say in which module {mutant.symbol} is now"
    elif not lines_of((ROOT / mutant.file).read_text("utf-8"), mutant.symbol):
        yield f"there is no {mutant.symbol} in {mutant.file}: say what keeps the promise of the test now"
    elif len(found := places(mutant)) != 1:
        yield f"{mutant.operator!r} applies to {len(found)} places of {mutant.symbol} that read {mutant.reads!r}, not to one"
    else:
        compile(found[0].made((ROOT / mutant.file).read_text("utf-8")), mutant.file, "exec")
    if len(files := named_tests().get(mutant.test.partition("[")[0], [])) != 1:
        yield f"{len(files)} tests have the name {mutant.test}"


def test_each_row_applies_to_the_code_as_it_is_and_names_a_test() -> None:
    found = [f"{mutant.name}: {said}" for mutant in MUTANTS for said in complaints(mutant)]
    assert not found, "\n" + "\n".join(found)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


class Reach(NamedTuple):
    """How long each test takes, and by file and line which tests come there."""

    seconds: dict[str, float]
    reached: dict[str, dict[str, list[str]]]

    def tests_of(self, change: Change) -> list[str]:
        """The tests that come to the lines of a change, as many as there is time for. If its line is only come to when its module is
        imported, those that come to the module. First those that come to what few others come to in this module, for their time."""
        lines = self.reached.get(change.file, {})
        here = [lines[str(line)] for line in range(change.lines[0], change.lines[1] + 1) if str(line) in lines]
        found = {test for each in (here if any(here) else here and lines.values()) for test in each}
        rarity = defaultdict[str, float](float)
        for tests in map(set, lines.values()):
            for test in tests:
                rarity[test] += 1 / len(tests)

        def worth(test: str) -> tuple[float, str]:
            return -rarity[test] / max(self.seconds[test], 0.001), test

        nearest = sorted((test for test in found if test in self.seconds), key=worth)
        spent = accumulate(self.seconds[test] for test in nearest)
        return [
            test for test, until_s in zip(nearest, spent, strict=True) if until_s <= TESTS_S_MAX or test == nearest[0]
        ]


class Checkout:
    """A copy of the checkout, in which tests are run."""

    def __init__(self, folder: Path) -> None:
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, symlinks=True)
        for name in ("pyproject.toml", "README.md"):
            shutil.copy2(ROOT / name, folder)
        self._folder, self._log = folder, folder / "log"
        self._warm = subprocess.Popen(
            [sys.executable, "-c", WARM],
            cwd=folder,
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End its process."""
        self._warm.communicate()

    @contextmanager
    def changed(self, file: str, text: str, number: int) -> Iterator[None]:
        """Make a mutant for a while."""
        target = self._folder / file
        before, times = target.read_text("utf-8"), target.stat()
        target.write_text(text, "utf-8")
        os.utime(target, (number, number))  # by which it is told from what was compiled before
        try:
            yield
        finally:
            target.write_text(before, "utf-8")
            os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))

    def source(self, file: str) -> str:
        """A file as it is without mutants."""
        return (self._folder / file).read_text("utf-8")

    def files(self, room: str) -> list[str]:
        """The modules of a room."""
        return sorted(path.relative_to(self._folder).as_posix() for path in (self._folder / room).rglob("*.py"))

    def reach(self) -> Reach:
        """Which tests come to which lines, as the code is. It is kept where `REACH` says, if it says so."""
        kept = Path(os.environ.get("REACH") or self._folder / "reach.json")
        if not kept.exists():
            ended, said = self.test(["-p", "tests.reach", f"--reach={kept}", *NEAREST], REACH_TIMEOUT_S, stop=False)
            assert kept.exists(), (ended, said)
        return Reach(**json.loads(kept.read_text("utf-8")))

    def test(self, tests: list[str], timeout_s: int = TIMEOUT_S, *, stop: bool = True) -> tuple[int, str]:
        """Run tests, until one fails if it is to `stop` then. Returns how that ended, and what it said."""
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        asked = [*tests, *(["-x"] if stop else [])]
        self._warm.stdin.write(json.dumps([asked, str(self._log), timeout_s]) + "\n")
        self._warm.stdin.flush()
        return int(self._warm.stdout.readline()), self._log.read_text("utf-8")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    made = Checkout(tmp_path_factory.mktemp("mutants"))
    yield made
    made.close()


def name(number: int) -> str:
    """What the mutant of this number does."""
    return MUTANTS[number].name


def demand_notice(number: int, checkout: Checkout) -> None:
    """Fail unless the test of a mutant fails when it is made."""
    mutant = MUTANTS[number]
    (change,), (path,) = places(mutant), named_tests()[mutant.test.partition("[")[0]]
    with checkout.changed(mutant.file, change.made(checkout.source(mutant.file)), number):
        ended, said = checkout.test([f"{path}::{mutant.test}"])
    assert ended == pytest.ExitCode.TESTS_FAILED, said


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(0, len(MUTANTS), 14), ids=name)
def test_of_some_promises_it_is_noticed_when_they_do_not_hold(number: int, checkout: Checkout) -> None:
    demand_notice(number, checkout)


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(MUTANTS)), ids=name)
def test_of_all_promises_it_is_noticed_when_they_do_not_hold(number: int, checkout: Checkout) -> None:
    demand_notice(number, checkout)


def drawn(checkout: Checkout) -> list[Change]:
    """The sample, or the part of it that is asked for. A longer sample of the same seed begins with a shorter one."""
    every = [
        change for room in ROOMS for file in checkout.files(room) for change in slips_of(file, checkout.source(file))
    ]
    random.Random(int(os.environ.get("SAMPLE_SEED", "1"))).shuffle(every)
    first, _, last = os.environ.get("SAMPLE", f"0:{SAMPLE}").partition(":")
    return every[int(first) : int(last)]


def survives(checkout: Checkout, reach: Reach, change: Change, number: int) -> bool:
    """Whether no test that comes to a change notices it, in the time that there is."""
    tests = reach.tests_of(change)
    with checkout.changed(change.file, change.made(checkout.source(change.file)), number):
        return not tests or checkout.test(tests)[0] == pytest.ExitCode.OK


def test_what_is_known_to_be_harmless_can_still_be_done_to_the_code() -> None:
    sources = {file: (ROOT / file).read_text("utf-8") for file, _ in HARMLESS}
    possible = {(file, each.told(text)) for file, text in sources.items() for each in slips_of(file, text)}
    assert not HARMLESS - possible


@pytest.mark.long
def test_of_a_sample_of_slips_nearly_all_that_change_behaviour_are_noticed(checkout: Checkout) -> None:
    faulthandler.cancel_dump_traceback_later()  # it takes hours; what hangs in it has limits of its own
    reach, sample, missed, harmless = checkout.reach(), drawn(checkout), list[str](), 0
    for number, change in enumerate(sample, len(MUTANTS)):
        what, verdict = change.told(checkout.source(change.file)), "noticed"
        told = f"{change.file}:{change.lines[0]}: {change.operator}: {what} ({len(reach.tests_of(change))} tests)"
        if survives(checkout, reach, change, number):
            verdict = "harmless" if (change.file, what) in HARMLESS else "MISSED"
            harmless += verdict == "harmless"
            missed += [told] if verdict == "MISSED" else []
        print(f"{verdict:8} {told}", flush=True)  # noqa: T201 - whoever waits sees it go on
    noticed = len(sample) - harmless - len(missed)
    said = [
        f"{noticed} of {len(sample)} were noticed, {harmless} are known to be harmless, and these were missed:",
        *missed,
    ]
    print(*said, sep="\n")  # noqa: T201 - the same
    assert noticed >= NOTICED_MIN * (len(sample) - harmless), "\n".join(said)


TOY = """
@once
def f(self, a: int | None = 3, *, b: bool = True) -> str | None:
    'Not 4.'
    for each in a:
        if not each or b is not None and len(each) <= 2:
            continue
        self.total += each * 2
        await self.tell(f"{each + 1}")
    return [x for x in self.all if x] if a else None
"""


def test_the_slips_of_the_sample_are_at_every_place_of_the_code_and_at_none_of_its_types_and_texts() -> None:
    found = slips_of("toy.py", TOY)
    assert [(each.operator, each.told(TOY).partition(" => ")[2]) for each in found] == [
        ("constant", "def f(self, a: int | None = 4, *, b: bool = True) -> str | None:"),
        ("constant", "def f(self, a: int | None = 3, *, b: bool = False) -> str | None:"),
        ("no not", "if  each or b is not None and len(each) <= 2:"),
        ("swapped branches", "if not (not each or b is not None and len(each) <= 2):"),
        ("and/or", "if not each and b is not None and len(each) <= 2:"),
        ("comparison", "if not each or b is None and len(each) <= 2:"),
        ("and/or", "if not each or b is not None or len(each) <= 2:"),
        ("comparison", "if not each or b is not None and len(each) < 2:"),
        ("constant", "if not each or b is not None and len(each) <= 3:"),
        ("break/continue", "break"),
        ("removed setting", "pass"),
        ("sum", "self.total += each // 2"),
        ("constant", "self.total += each * 3"),
        ("removed call", "pass"),
        ("swapped branches", "return [x for x in self.all if not (x)] if a else None"),
        ("swapped branches", "return [x for x in self.all if x] if not (a) else None"),
    ]
    for each in found:
        compile(each.made(TOY).replace("await ", ""), "toy.py", "exec")


PROMISE = """
class Box:
    def keep(self, row):
        if row.is_new and not self.has(row):
            raise Refused(row)
        try:
            self.write(row, durable=True)
        except OSError:
            return None
        self.say(row)
"""


@pytest.mark.parametrize(
    ("operator", "reads", "line"),
    [
        ("never", "is_new", "if False:"),
        ("always", "is_new", "if True:"),
        ("no part", "has", "if row.is_new and True:"),
        ("removed statement", "Refused", "pass"),
        ("removed call", "say", "pass"),
        ("no argument", "durable", "self.write(row, )"),
        ("argument 1 alone", "write", "row"),
        ("not caught", "OSError", "except ():"),
        ("exchanged", "say", "self.say(row)"),
    ],
)
def test_an_operator_takes_away_what_reads_these_names(operator: str, reads: str, line: str) -> None:
    assert lines_of(PROMISE, "Box.keep") == [(3, 10)]
    (found,) = (each for each in changes_of("box.py", PROMISE) if each.operator == operator and reads in each.names)
    assert found.told(PROMISE).partition(" => ")[2] == line
    compile(found.made(PROMISE), "box.py", "exec")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"at": "policies.nowhere:judge"}, "there is no policies/nowhere.py"),
        ({"at": "policies.recovery:judged"}, "there is no judged"),
        ({"reads": "horses"}, "applies to 0 places"),
        ({"reads": ""}, "applies to"),
        ({"test": "test_nothing"}, "0 tests have the name"),
    ],
)
def test_a_row_that_says_nothing_any_more_is_told_with_what_to_do(change: dict[str, str], word: str) -> None:
    good = Mutant(
        "policies.recovery:judge", "never", "torn_down", "test_each_combination_has_one_letter_and_its_verdict"
    )
    assert not list(complaints(good))
    (said,) = complaints(good._replace(**change))
    assert word in said
