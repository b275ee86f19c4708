"""What an author's code raises in another process is raised at its caller as what it is, with what it was raised from."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from perdure.actors import Agent, RemoteError, RunContext, exposed
from tests.kit import Stage, play


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
