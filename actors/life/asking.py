"""Questions of an agent to people outside of its runs: in fibers and exposed methods, in handlers and transactions, in the tools of a chat.

Such a question is a run of a class that is built in (`actors.agent.question`), so it survives, is listed, explained, cancelled and told
of like any run. It has the place at which it is asked, by the order of the questions there: code that is entered again after a death finds
it open or answered. A question in other words at that place takes the place of the former, which is cancelled. Where the code waits, the
answer is made of what people said here, where the type is; if that refuses it, the next question says why. With `then` nobody has the type
after a death: it is found by its name, as tools are, and the run that asks holds the answer to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import count
from typing import Any, Final, NoReturn, Unpack, cast

from perdure.actors.code.author_call import name_of_method
from perdure.actors.code.naming import load_type
from perdure.actors.code.schema import Shape
from perdure.actors.code.signatures import check_takes
from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.actors.life.asks import (
    ANSWER_TO,
    Answer,
    AskOptions,
    NoAnswer,
    WantedAnswer,
    answer_of,
    body_of,
    found_type,
    kept_type,
    time_stands_still,
    type_of_answer,
    wanted_answer,
)
from perdure.actors.life.dispatch import NOT_AWAITED, Dispatch
from perdure.actors.life.life import Life
from perdure.actors.life.results import RunFailed, RunHandle, RunResult
from perdure.actors.life.waits import Hearing
from perdure.actors.tasks import Pending
from perdure.ledger import (
    QUESTION_TYPE,
    AskExpired,
    AwaitedInsideHandler,
    Cancel,
    ConflictingRequest,
    FiberStopped,
    derived_run_id,
)
from perdure.policies import JsonObject

REPLACED: Final = "another question took its place"
ANSWERED: Final = "_perdure_answered_fiber"


class Asking:
    """Asks people on behalf of one agent."""

    def __init__(self, life: Life, dispatch: Dispatch) -> None:
        self._life, self._dispatch = life, dispatch

    def ask(
        self, question: str, schema: object = bool, then: object = None, **options: Unpack[AskOptions]
    ) -> Pending[Answer] | RunHandle:
        life, activity = self._life, ACTIVITY.get()
        unknown = options.keys() - AskOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"ask() got an unexpected keyword argument {min(unknown)!r}")
        if then is not None:
            wanted = wanted_answer(question, schema, life.limits, **options)
            return self._detached(wanted, type_of_answer(schema), then)
        if life.transaction is not None:
            _refuse_to_wait("a transaction or a handler cannot wait for people: it would hold its changes back")
        if not life.is_up:
            _refuse_to_wait("on_start cannot wait for people: everything that the agent does waits for it")
        if activity is not None and activity.own_run is not None:
            return activity.own_run.ask(question, schema, **options)
        wanted = wanted_answer(question, schema, life.limits, **options)
        # Code of no piece of work has no order of its own, so its questions are told apart by what they say.
        digest = wanted.digest if activity is None else ""
        place = (activity or Activity(life.agent_id)).derive(QUESTION_TYPE, digest)
        fiber = None if activity is None else activity.fiber
        return life.bridge(self._answer(place, wanted, None if fiber is None else fiber.hearing()))

    async def _answer(self, place: str, wanted: WantedAnswer, fiber: Hearing | None) -> Answer:
        asked = wanted.asked()
        with time_stands_still():
            while True:
                run_id, body = await self._told(place, asked, fiber)
                note = wanted.problem(body)
                if not note:
                    return wanted.answer(run_id, body)
                asked["note"] = note
                place = derived_run_id(place, QUESTION_TYPE, "again", 0)

    async def _told(self, place: str, asked: Mapping[str, object], fiber: Hearing | None) -> tuple[str, bytes]:
        # By the first run of this place that asks this, and that nobody gave up. The failure of one that a person cancelled is raised.
        for number in count():
            run_id = derived_run_id(place, QUESTION_TYPE, "", number) if number else place
            try:
                if fiber is not None:
                    error, output = await self._heard_in(fiber, run_id, asked)
                else:
                    asking = self._dispatch.ask(load_type(QUESTION_TYPE), asked, run_id=run_id)
                    result = cast("RunResult", await asking)
                    error = result.error
                    output = None if error in (REPLACED, NOT_AWAITED) else result.output  # that of a failure raises it
            except ConflictingRequest:
                await self._life.ask(Cancel(run_id, self._life.agent_id, REPLACED))
                continue
            if error not in (REPLACED, NOT_AWAITED):
                return run_id, body_of(cast("Mapping[str, object]", output))
        raise AssertionError("the numbers do not end")

    async def _heard_in(self, fiber: Hearing, run_id: str, asked: Mapping[str, object]) -> tuple[str, object]:
        # The answer comes to a fiber as an event, so it may wait for that in no process.
        name = f"{ANSWER_TO}{run_id}"
        if not fiber.has_heard(name):
            shown: JsonObject = {"fiber": fiber.owner}
            await self._dispatch.ask(load_type(QUESTION_TYPE), asked, run_id=run_id, then=ANSWERED, display=shown)
        try:
            said = await fiber.hear(name)
        except (asyncio.CancelledError, FiberStopped):
            if fiber.goes_on():  # nobody waits for the answer any more
                self._life.request(Cancel(run_id, self._life.agent_id, NOT_AWAITED))
            raise
        error = str(said["error"])
        if error and error not in (REPLACED, NOT_AWAITED):
            raise RunFailed(run_id=run_id, agent_type=QUESTION_TYPE, status="error", error=error)
        return error, said.get("output")

    def _detached(self, wanted: WantedAnswer, kind: object, then: object) -> RunHandle:
        agent = self._life.agent
        name = name_of_method(agent, "then", then)
        check_takes(type(agent), "then", name, "answer")
        asked = {**wanted.asked(), "type": kept_type(kind, self._life.code_dir)}
        return cast("RunHandle", self._dispatch.ask(load_type(QUESTION_TYPE), asked, then=name))


def _refuse_to_wait(why: str) -> NoReturn:
    words = "Give the method that is told the answer: `self.ask(…, then=self.method)`; it is called exactly once"
    raise AwaitedInsideHandler("then", f"{why}. {words}")


def heard(life: Life, result: RunResult[Any]) -> Answer | NoAnswer | None:
    # One that was interrupted ends when a person has had it tried again.
    if isinstance(result, RunFailed):
        return None if result.status == "interrupted" else NoAnswer(result.run_id, result)
    told = result.output
    try:
        return answer_of(result.run_id, told["question"], Shape(found_type(told["type"], life.code_dir)), body_of(told))
    except AskExpired as problem:
        return NoAnswer(result.run_id, problem)
