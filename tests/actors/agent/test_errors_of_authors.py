"""What an author's code raises in another process is raised at its caller as what it is, with what it was raised from."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import traceback
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from pydantic import TypeAdapter, ValidationError

from perdure.actors import Agent, RemoteError, RunContext, exposed
from perdure.actors.chat.tool_schema import BadToolInput
from perdure.actors.code.author_call import tried
from perdure.actors.link.wire import error_from_plain, error_to_plain, remote_error
from perdure.actors.tasks import NotAnException
from perdure.ledger import BadRequest, MailState, PerdureError, pack, strike, unpack
from tests.actors.raisers import KINDS, Raiser, Unready
from tests.kit import ROOMY, Stage, play
from tests.tidy import IMPORT_PATH


class SoldOut(Exception):
    """Takes its own arguments."""

    def __init__(self, *, article: str, left: int) -> None:
        super().__init__(f"{left} of {article} are left")
        self.article = article


class Shop(Agent):
    """Fails in all ways."""

    stands_alone = True

    async def run(self, input: str, run: RunContext) -> None:
        self.buy(input)

    @exposed
    def buy(self, article: str) -> None:
        try:
            {}[article]
        except KeyError as missing:
            if article == "local":

                class Local(Exception):
                    """Nobody else can know it."""

                raise Local("here") from missing
            raise SoldOut(article=article, left=0) from missing

    @exposed
    async def buy_of(self, name: str) -> list[Any]:
        try:
            await self.sub_agent(Shop, name).buy("tea")  # type: ignore[func-returns-value]
        except SoldOut as problem:
            return [str(problem), type(problem.__cause__).__name__]
        return []


async def test_a_caller_catches_an_authors_own_exception_by_its_class(stage: Stage) -> None:
    with pytest.raises(SoldOut) as failed:
        await stage.call(Shop, "buy", "tea")
    problem: Any = failed.value
    assert isinstance(problem, RemoteError)
    assert (problem.kind, problem.words) == ("SoldOut", "0 of tea are left")
    assert problem.place == f"{__name__}:SoldOut"
    assert isinstance(problem.__cause__, KeyError)
    assert isinstance(problem.__cause__, RemoteError)
    again = pickle.loads(pickle.dumps(problem))
    assert isinstance(again, SoldOut)
    assert (again.words, again.place) == (problem.words, problem.place)
    assert await stage.call(Shop, "buy_of", "branch") == ["SoldOut: 0 of tea are left", "KeyError"]


SCRIPT = """
from perdure.actors.code.naming import loaded_class

class SoldOut(Exception):
    pass

if __name__ == "__main__":
    print([loaded_class(f"{place}:SoldOut") is SoldOut for place in ("till", "elsewhere")])
"""


def test_a_script_catches_what_it_defines_itself(tmp_path: Path) -> None:
    """Hosts import it by its name, and here it is `__main__`."""
    (tmp_path / "till.py").write_text(SCRIPT)
    environment = {"PYTHONPATH": IMPORT_PATH}
    command = [sys.executable, "till.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[True, False]\n"


async def test_an_exception_that_the_caller_cannot_know_says_what_it_was(stage: Stage) -> None:
    with pytest.raises(RemoteError, match="Local: here") as failed:
        await stage.call(Shop, "buy", "local")
    assert type(failed.value) is RemoteError
    assert failed.value.place == f"{__name__}:Shop.buy.<locals>.Local"
    assert isinstance(failed.value.__cause__, KeyError)


async def test_the_words_of_a_failed_run_keep_the_causes(stage: Stage) -> None:
    result = await stage.client.run(Shop, "tea", run_id="r")
    assert result.error == "SoldOut: 0 of tea are left (caused by KeyError: 'tea')"
    assert "The above exception was the direct cause of the following exception" in result.failure.trace


def words_of(problem: Any) -> str:
    """What the caller reads."""
    assert isinstance(problem, RemoteError)
    words = str(problem)
    assert words == words.encode().decode()
    assert "\0" not in words
    assert len(words) <= 4_100
    "".join(traceback.format_exception(pickle.loads(pickle.dumps(problem))))
    return words


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_raised_is_told_in_its_own_words_once_and_no_process_dies(kind: str) -> None:
    Raiser.entered.clear()
    expected = KINDS[kind][1]
    without_causes = expected.partition(" (caused by")[0]

    async def story(stage: Stage) -> None:
        for method in ("asked", "asked_on_a_thread"):
            with pytest.raises(RemoteError) as failed:
                await stage.call(Raiser, method, kind)
            assert words_of(failed.value).startswith(without_causes)
        with pytest.raises(RemoteError) as failed:
            await stage.call(Unready, "ask", name=kind)
        assert words_of(failed.value).startswith(without_causes)
        for where in ("run", "task"):
            result = await stage.client.run(Raiser, f"{where}/{kind}", run_id=where)
            assert (result.status, result.error[: len(expected)]) == ("error", expected)
            assert await stage.client.ask("explain", where)
        assert (await stage.client.run(Raiser, "fine/yes", run_id="fine")).summary == "caf\\udce9"
        assert not stage.simulation.crashes

    play(story)
    assert set(Raiser.entered.values()) == {1}


@pytest.mark.parametrize(
    "kind", ["panic", "interrupt", "exit", "close", "stray", "dumb", "surrogate", "time", "itself"]
)
def test_what_a_handler_raises_is_a_failed_try_and_its_mail_is_parked_with_the_words(kind: str) -> None:
    Raiser.entered.clear()
    handlers = ["handled", "handled_on_a_thread"][: 1 if kind == "itself" else 2]

    async def story(stage: Stage) -> None:
        begun_s = asyncio.get_running_loop().time()
        for handler in handlers:
            await stage.call(Raiser, "detach", kind, handler)
            mail_id = (await stage.ended(f"{handler}-{kind}")).mail_id("finish")
            await stage.until(lambda key=mail_id: stage.view.mail[key].state == MailState.PARKED)  # type: ignore[misc]
            expected = "RuntimeError: the code cancelled the task" if kind == "itself" else KINDS[kind][1]
            assert str(stage.view.mail[mail_id].error).startswith(expected)
        assert asyncio.get_running_loop().time() - begun_s > 10

    play(story, limits=ROOMY)
    assert set(Raiser.entered.values()) == {ROOMY.handler_attempts_max}
    assert len(Raiser.entered) == len(handlers)


@pytest.mark.parametrize("kind", ["panic", "interrupt", "close", "dumb", "surrogate"])
def test_what_a_schedule_an_item_and_a_fiber_raise_is_a_failed_try_of_theirs(kind: str) -> None:
    Raiser.entered.clear()

    async def story(stage: Stage) -> None:
        await stage.call(Raiser, "plan", kind)
        await asyncio.sleep(300)
        told = await stage.call(Raiser, "planned")
        assert [each[: len(KINDS[kind][1])] for each in told] == [KINDS[kind][1]] * 3

    play(story)
    assert {where for where, _ in Raiser.entered} == {"called", "taken", "job"}
    assert all(1 <= count <= 10 for count in Raiser.entered.values())


def test_code_that_cancels_its_own_task_has_failed() -> None:
    Raiser.entered.clear()

    async def story(stage: Stage) -> None:
        result = await stage.client.run(Raiser, "itself/", run_id="itself")
        assert result.error == "RuntimeError: the code cancelled the task that it ran in"
        with pytest.raises(RemoteError, match="cancelled the task that it ran in"):
            await stage.call(Raiser, "asked", "itself")

    play(story)
    assert set(Raiser.entered.values()) == {1}


async def test_the_errors_of_a_group_are_found_in_it_by_who_called(stage: Stage) -> None:
    found = []
    try:
        await stage.call(Raiser, "asked", "group")
    except* ConnectionError as down:
        found = list(down.exceptions)
    assert [str(each) for each in found] == ["ConnectionError: down"]
    assert isinstance(found[0], RemoteError)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_that_is_passed_on_from_process_to_process_stays_what_it_was(kind: str) -> None:
    first = error_from_plain(unpack(pack(error_to_plain(KINDS[kind][0](), 4_000))))
    second = error_from_plain(unpack(pack(error_to_plain(first, 4_000))))
    assert (type(second), str(second), second.__reduce__()) == (type(first), str(first), first.__reduce__())


class Peculiar(BadRequest):
    """An author's own kind of a bad request."""


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (BadRequest("field", "why"), BadRequest("field", "why")),
        (BadRequest("caf\udce9", "why"), BadRequest("caf\\udce9", "why")),
        (Peculiar("field", "why"), RemoteError("Peculiar", "field: why")),
    ],
    ids=str,
)
def test_an_error_of_ours_keeps_its_fields_and_what_an_author_made_of_one_its_words(
    problem: BadRequest, told: PerdureError
) -> None:
    heard = error_from_plain(unpack(pack(error_to_plain(problem))))
    assert (isinstance(heard, BadRequest), str(heard)) == (True, str(told))
    problem.args = (1, 2, 3, {"a": object()})
    assert str(error_from_plain(unpack(pack(error_to_plain(problem))))).endswith(problem.problem)


async def _waits() -> None:
    await asyncio.get_running_loop().create_future()


async def _leaves() -> None:
    await asyncio.sleep(0)
    raise GeneratorExit("by hand")


def test_a_coroutine_that_is_closed_goes_on_closing_and_one_that_raises_its_like_has_failed() -> None:
    """Both while a task runs: the garbage collector closes coroutines within whichever task is at work."""

    async def both() -> tuple[list[object], Exception | None]:
        outcomes: list[object] = []

        async def outer() -> None:
            outcomes.append(await tried(_waits()))

        pending = outer()
        pending.send(None)
        pending.close()
        return outcomes, (await tried(_leaves()))[1]

    outcomes, problem = asyncio.run(both())
    assert outcomes == []
    assert isinstance(problem, NotAnException)
    assert isinstance(problem.raised, GeneratorExit)


class ShopError(LookupError):
    """Keeps a list of its kinds."""

    kinds: ClassVar[list[str]] = []

    def __init_subclass__(cls) -> None:
        ShopError.kinds.append(cls.__name__)


class OutOfStock(ShopError):
    """Makes its fields in its own way."""

    __slots__ = ("left",)
    made: ClassVar[list[str]] = []

    def __new__(cls, sku: str, *, left: int) -> Self:
        cls.made.append(sku)
        return super().__new__(cls, sku, left)

    def __init__(self, sku: str, *, left: int) -> None:
        super().__init__(sku, (left, Decimal("1.10")))
        self.sku, self.left = sku, left
        self.shelf = object()
        self.page = "x" * 10_000_000
        self.kind = "fruit"  # a name of `RemoteError`


def heard_of(problem: BaseException, times: int = 3) -> Any:
    """It as another process has it, after it was passed on and pickled."""
    for _ in range(times):
        problem = pickle.loads(pickle.dumps(error_from_plain(unpack(pack(error_to_plain(problem, 4_000))))))
    return problem


def test_an_error_has_its_arguments_and_its_attributes_at_the_caller_as_far_as_they_are_short_plain_data() -> None:
    problem = OutOfStock("A-1", left=2)
    made, kinds = list(OutOfStock.made), list(ShopError.kinds)
    heard = heard_of(problem)
    assert isinstance(heard, OutOfStock)
    assert (heard.args, heard.sku, heard.left) == (("A-1", (2, Decimal("1.10"))), "A-1", 2)
    assert (type(heard.args[1]), heard.kind, type(heard).__name__) == (tuple, "OutOfStock", "OutOfStock")
    assert not hasattr(heard, "shelf")
    assert not hasattr(heard, "page")
    assert (OutOfStock.made, ShopError.kinds) == (made, kinds)  # no code of the class was called for that
    assert len(pack(error_to_plain(problem))) < 1_000
    odd = heard_of(ValueError("odd", object()))
    assert odd.args == (odd.words,)
    many = ValueError()
    vars(many).update({f"field{number}": "x" * 100 for number in range(1_000)}, **{"caf\udce9": 1, "__notes__": ["n"]})
    assert len(pack(error_to_plain(many))) < 5_000


def test_errors_of_pythons_own_have_their_fields_at_the_caller() -> None:
    missing = heard_of(FileNotFoundError(2, "No such file", "/none"))
    assert isinstance(missing, FileNotFoundError)
    assert (missing.errno, missing.strerror, missing.filename) == (2, "No such file", "/none")
    assert heard_of(KeyError("k")).args == ("k",)
    garbled = heard_of(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why"))
    assert isinstance(garbled, UnicodeDecodeError)
    assert (garbled.object, garbled.start, garbled.reason) == (b"\xff", 0, "why")
    assert heard_of(ModuleNotFoundError("no pandas", name="pandas")).name == "pandas"
    wrong = heard_of(SyntaxError("bad", ("shelf.py", 3, 1, "x =", 3, 4)))
    assert (wrong.filename, wrong.lineno) == ("shelf.py", 3)
    assert "shelf.py" in "".join(traceback.format_exception(wrong))


def test_an_error_is_caught_as_the_nearest_kind_that_is_known_and_can_have_subclasses() -> None:
    with pytest.raises(ValidationError) as final:
        TypeAdapter(int).validate_python("x")
    heard = heard_of(final.value)
    assert isinstance(heard, ValueError)
    assert (heard.kind, heard.title, heard.bases) == ("ValidationError", "int", ("builtins:ValueError",))
    local: Any = type("Local", (OutOfStock, RuntimeError), {"__module__": "nowhere"})
    heard = heard_of(local("A-1", left=2))
    assert isinstance(heard, OutOfStock)
    assert isinstance(heard, RuntimeError)
    assert (heard.kind, heard.sku) == ("Local", "A-1")
    assert type(heard_of(type("Local", (StopIteration,), {})(1))) is RemoteError


class Sorted(Exception):
    """Has names of `RemoteError` for itself."""

    place: str
    __slots__ = ("place",)
    words = property(lambda _: 1 / 0)

    @property
    def kind(self) -> str:
        return "sorted"


def test_an_error_whose_class_has_names_of_ours_for_itself_is_caught_by_its_class() -> None:
    problem = Sorted("by size")
    problem.place = "shelf"
    heard = heard_of(problem)
    assert isinstance(heard, Sorted)
    assert (heard.kind, heard.words, heard.place) == ("Sorted", "by size", f"{__name__}:Sorted")
    assert isinstance(heard_of(remote_error("KeyError", "'k'")), KeyError)  # of a gateway, which tells no place


def test_a_secret_is_struck_out_of_what_an_error_carries() -> None:
    problem = OutOfStock(strike("sk-correct-horse"), left=1)
    problem.add_note("sk-correct-horse")
    vars(problem)["tried"] = [{"key": b"sk-correct-horse"}]
    body = pack(error_to_plain(problem, 4_000))
    assert b"horse" not in body
    assert error_from_plain(unpack(body)).args[0] == "*" * 16


def test_an_error_of_ours_whose_class_the_receiver_has_not_loaded_arrives_as_what_it_is_a_kind_of() -> None:
    plain = unpack(pack(error_to_plain(BadToolInput("cents", "is no number"))))
    assert isinstance(error_from_plain(plain), BadToolInput)
    heard = error_from_plain(["Unheard", *plain[1:]])
    assert (type(heard), getattr(heard, "field", ""), str(heard)) == (BadRequest, "cents", "cents: is no number")
    heard = error_from_plain(["Unheard", ["a", 1], "PerdureError", "it is odd"])
    assert (type(heard), str(heard)) == (RemoteError, "Unheard: it is odd")
    assert error_to_plain(BadRequest("cents", "is no number")) == ["BadRequest", ["cents", "is no number"]]
