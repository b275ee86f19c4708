"""What an author's code raises in another process is raised at its caller as what it is, with what it was raised from."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.actors import Agent, RemoteError, RunContext, exposed
from tests.kit import Stage, play
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


def test_a_caller_catches_an_authors_own_exception_by_its_class() -> None:
    async def story(stage: Stage) -> None:
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

    play(story)


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


def test_an_exception_that_the_caller_cannot_know_says_what_it_was() -> None:
    async def story(stage: Stage) -> None:
        with pytest.raises(RemoteError, match="Local: here") as failed:
            await stage.call(Shop, "buy", "local")
        assert type(failed.value) is RemoteError
        assert failed.value.place == f"{__name__}:Shop.buy.<locals>.Local"
        assert isinstance(failed.value.__cause__, KeyError)

    play(story)


def test_the_words_of_a_failed_run_keep_the_causes() -> None:
    async def story(stage: Stage) -> None:
        result = await stage.client.run(Shop, "tea", run_id="r")
        assert result.error == "SoldOut: 0 of tea are left (caused by KeyError: 'tea')"
        assert "The above exception was the direct cause of the following exception" in result.failure.trace

    play(story)
