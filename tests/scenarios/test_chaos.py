"""Strikes at anybody's work: they follow the seed, the work goes on, and whatever does not is told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure.actors import Agent, Client, Detached, RunContext, RunInfo, RunResult, exposed
from perdure.ledger import BadRequest, SupervisorUnreachable
from perdure.policies import StrikeTarget
from perdure.scenarios.faults.chaos import GONE_S, MUTE_S, Account, Chaos, Plan
from perdure.scenarios.faults.observer import NotServed
from perdure.scenarios.faults.strikes import Strike, Victim
from perdure.scenarios.stories.stage import SimStage
from perdure.scenarios.testing.laboratory import Laboratory
from tests.scenarios.command import perdure

CHILDREN = 12


class Page(Agent):
    """Takes its time."""

    async def run(self, input: int, run: RunContext) -> int:
        for step in range(5):
            await run.report_progress(step / 5, phase="reading")
            await asyncio.sleep(1 + input % 3)
        return input


class Book(Agent):
    """Counts the pages that were read, each by a detached run."""

    @exposed(repeatable=True)
    def open(self) -> None:
        """In one transaction, and only once."""
        with self.transaction():
            if "pages" not in self.state:
                self.state["pages"] = []
                self.run_agent_tools(
                    [(Page, number) for number in range(CHILDREN)], detached=Detached(on_finish="on_page")
                )

    def on_page(self, _run: RunInfo, result: RunResult) -> None:
        """A completion."""
        self.state["pages"] = [*self.state["pages"], result.output]

    @exposed(repeatable=True)
    def pages(self) -> list[int]:
        """Those that were read, as often as they were told."""
        return sorted(self.state["pages"])


def played(plan: Plan) -> tuple[Chaos, dict[str, Any], list[str], list[int]]:
    """A drill against a fan-out in the simulated world: with its account, what it said, and what the work came to."""
    said: list[str] = []
    found: list[Any] = []

    async def story(client: Client) -> None:
        stage = SimStage(laboratory, client)
        await client.agent(Book, "book").open()
        drill = Chaos(stage, plan, said.append)
        await drill.play()
        account = await Account.of(stage)
        found.extend([drill, drill.judge(account), await client.agent(Book, "book").pages()])

    with Laboratory(plan.seed, diaries=False) as laboratory:
        laboratory.play(story)
        laboratory.heal()
        laboratory.settle()
    return found[0], found[1], said, found[2]


@pytest.mark.parametrize("fraction", [None, 0.6])
def test_the_work_goes_on_under_strikes_and_everything_is_accounted_for(fraction: float | None) -> None:
    drill, told, said, pages = played(Plan(every_s=2, for_s=12, seed=3, fraction=fraction))
    assert drill.wrong == []
    assert told["verified"]
    assert pages == list(range(CHILDREN)), "each completion took effect once"
    assert told["kills"] == {"host": 2, "agent": 2, "supervisor": 2}
    assert [round(each["at_s"]) for each in told["strikes"]] == [2, 4, 6, 8, 10, 12]
    assert all(each["recovered_ms"] is not None for each in told["strikes"])
    assert len(told["recovery_ms"]) == 6
    assert told["runs"]["completed"] == told["deliveries"]["enqueued"] == told["deliveries"]["delivered"] == CHILDREN
    assert sum(each.startswith("strike ") for each in said) == 6
    assert sum("is at work again after" in each for each in said) == 6
    struck = [len(each["victims"]) for each in told["strikes"] if each["target"] == "host"]
    assert (max(struck) > 1) == (fraction is not None)


def test_the_same_seed_strikes_the_same() -> None:
    strikes = [played(Plan(every_s=2, for_s=8, seed=seed))[1]["strikes"] for seed in (3, 3, 4)]
    assert strikes[0] == strikes[1]
    assert [each["target"] for each in strikes[0]] != [each["target"] for each in strikes[2]]


def test_only_what_was_asked_for_is_struck() -> None:
    _, told, _, pages = played(Plan(every_s=2, for_s=6, seed=1, targets=(StrikeTarget.SUPERVISOR,)))
    assert told["kills"] == {"supervisor": 3}
    assert {victim["name"] for strike in told["strikes"] for victim in strike["victims"]} == {"supervisor"}
    assert pages == list(range(CHILDREN))


class Told:
    """A system in which nothing happens but what is told: overviews in their order, the last until a kill. None stands for no answer."""

    def __init__(
        self,
        *overviews: dict[str, Any] | None,
        after_kill: dict[str, Any] | None = None,
        parked: tuple[str, ...] = (),
        problem: SupervisorUnreachable | None = None,
    ) -> None:
        self._overviews, self._after_kill, self._parked = list(overviews), after_kill, parked
        self._problem = problem or NotServed("nothing serves it")
        self.killed: list[str] = []

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def ask(self, name: str, *_: Any) -> Any:
        if name == "list":
            return []
        if name == "audit":
            parked = [{"mail_id": each, "error": "it raised"} for each in self._parked]
            return {**audit(), "parked_mail": parked}
        found = self._overviews.pop(0) if len(self._overviews) > 1 else self._overviews[0]
        if found is None:
            raise self._problem
        return found

    async def kill(self, victim: Victim) -> str:
        self.killed.append(victim.name)
        self._overviews = [self._after_kill] if self._after_kill is not None else self._overviews
        return "" if victim.name == "gone" else "SIGKILL"


def audit(**changed: Any) -> dict[str, Any]:
    return dict.fromkeys(("enqueued", "delivered", "superseded", "suppressed", "parked", "pending"), 0) | {
        "balanced": True,
        **changed,
    }


def overview(host: str = "h1", attempt: int = 1, **changed: Any) -> dict[str, Any]:
    """One host with one run on it."""
    return {
        "epoch": 1,
        "supervisor": {"pid": 1, "node": "box"},
        "hosts": [{"host": host, "pid": 2, "node": "box", "up": True}],
        "live": [{"run_id": "r", "attempt": attempt, "status": "running", "host": host, "parent": ""}],
        "agents": [],
        "runs": {"starting": 0, "running": 1, "completed": 0, "error": 0, "aborted": 0, "interrupted": 0},
        "audit": audit(),
        **changed,
    }


def drilled(system: Told, **plan: Any) -> tuple[Chaos, list[str]]:
    """A drill of one strike at a host, in virtual time."""
    said: list[str] = []

    async def story(_client: Client) -> Chaos:
        drill = Chaos(system, Plan(1, 1, targets=(StrikeTarget.HOST,), settle_s=5, **plan), said.append)
        await drill.play()
        return drill

    with Laboratory(1) as laboratory:
        drill: Chaos = laboratory.play(story)
    return drill, said


def test_a_run_that_is_not_at_work_again_is_told() -> None:
    drill, _ = drilled(Told(overview()))
    told = drill.judge(Account(overview(), audit(parked_mail=[]), []))
    assert drill.wrong == ["what strike 1 hit is not at work again: r"]
    assert (told["verified"], told["strikes"][0]["recovered_ms"], told["runs"]["live"]) == (False, None, 1)


def test_an_audit_that_does_not_balance_and_a_completion_that_was_parked_meanwhile_are_told() -> None:
    drill, _ = drilled(Told(overview(), after_kill=overview("h2", 2), parked=("known",)))
    parked = [{"mail_id": each, "error": "it raised"} for each in ("known", "new")]
    drill.judge(Account(overview(), audit(balanced=False, parked_mail=parked), []))
    assert len(drill.wrong) == 2
    assert drill.wrong[0].startswith("the audit does not balance: enqueued 0")
    assert drill.wrong[1] == "1 completion was parked meanwhile: new (it raised)"


def test_a_process_that_ended_before_it_was_struck_does_not_count() -> None:
    drill, said = drilled(Told(overview("gone")))
    assert drill.strikes == {}
    assert "strike 1: nobody is there any more to be struck" in said


def test_a_supervisor_that_answers_again_is_told_and_the_strike_comes_then() -> None:
    system = Told(overview(), *[None] * 8, overview(), after_kill=overview("h2", 2))
    drill, said = drilled(system)
    assert system.killed == ["h1"]
    assert said[0] == "nothing serves it"
    assert "the supervisor answers again after" in said[1]
    assert [each.took_ms is not None for each in drill.strikes.values()] == [True]


def test_a_directory_that_nobody_serves_any_more_ends_the_drill() -> None:
    drill, said = drilled(Told(overview(), None))
    assert drill.is_over
    assert GONE_S <= drill.seconds < MUTE_S
    assert said[-1] == "nothing serves the directory any more (nothing serves it), so the drill is over"
    assert drill.judge(Account(overview(), audit(parked_mail=[]), []))["verified"]


def test_a_supervisor_that_only_takes_its_time_is_waited_for_longer() -> None:
    drill, said = drilled(Told(overview(), None, problem=SupervisorUnreachable("it does not answer")))
    assert drill.is_over
    assert drill.seconds >= MUTE_S
    assert said[0] == "it does not answer"
    drill, _ = drilled(Told(overview(), *[None] * 300, overview(), problem=SupervisorUnreachable("it does not answer")))
    assert not drill.is_over


def test_one_who_stops_the_drill_gets_the_account_at_once() -> None:
    async def story(_client: Client) -> None:
        drill = Chaos(Told(overview()), Plan(60, 600), print)
        drill.stopped.set()
        await drill.play()
        assert drill.judge(Account(overview(), audit(parked_mail=[]), [])) == {
            "seed": 0,
            "seconds": 0.0,
            "stopped": True,
            "strikes": [],
            "kills": {},
            "runs": {"completed": 0, "error": 0, "aborted": 0, "interrupted": 0, "live": 1},
            "failed": {},
            "deliveries": audit(),
            "recovery_ms": [],
            "verified": True,
        }

    with Laboratory(1) as laboratory:
        laboratory.play(story)


def test_an_agent_that_was_put_to_sleep_since_is_at_work_again() -> None:
    """A clean sleep follows only on a later life: one that was cut off stays on the list until it is woken."""
    for agents, has_recovered in (
        ([["p@m:P", "h1", 3]], False),
        ([["p@m:P", "", 3]], False),
        ([["p@m:P", "h2", 4]], True),
        ([], True),
    ):
        strike = Strike("host", {}, 0.0, agents={"p@m:P": 3})
        assert strike.has_recovered({"epoch": 1, "live": [], "agents": agents}, 1.0) == has_recovered
        assert strike.took_ms == (1_000 if has_recovered else None)


REFUSED = {
    "every: '0.1s' is less than 200 ms": ["chaos", "--every", "0.1s"],
    "every: 'often' is not a duration": ["chaos", "--every", "often"],
    "for: '4s' is shorter than --every 5s": ["chaos", "--for", "4s"],
    "what: ray is struck only with --ray": ["chaos", "--what", "ray"],
    "fraction: 1.5 is not above 0": ["chaos", "--fraction", "1.5"],
    "fraction: says how many hosts": ["chaos", "--fraction", "0.5", "--what", "supervisor"],
    "fraction: 0 is not above 0": ["kill", "--fraction", "0"],
    "what: say one of": ["kill"],
    "what: say one of host": ["kill", "supervisor", "--all-hosts"],
    "name: which agent is meant": ["kill", "agent"],
    "name: 'h1' goes with host": ["kill", "supervisor", "h1"],
    "wait: 'x' is not a duration": ["kill", "supervisor", "--wait", "x"],
}


@pytest.mark.parametrize(("problem", "words"), REFUSED.items(), ids=[" ".join(each) for each in REFUSED.values()])
def test_what_makes_no_sense_is_refused_by_its_name(problem: str, words: list[str], tmp_path: Path) -> None:
    done = perdure(*words, "--data", tmp_path)
    assert isinstance(done.exception, BadRequest)
    assert str(done.exception).startswith(problem)


@pytest.mark.parametrize("words", [["chaos"], ["kill", "supervisor"]], ids=" ".join)
def test_a_directory_that_nobody_serves_is_refused_and_nothing_is_made(words: list[str], tmp_path: Path) -> None:
    done = perdure(*words, "--data", tmp_path)
    assert isinstance(done.exception, SupervisorUnreachable)
    assert str(done.exception) == f"nothing serves {tmp_path}"
    missing = perdure(*words, "--data", tmp_path / "none")
    assert str(missing.exception) == f"data: there is no directory {tmp_path / 'none'}"
    assert list(tmp_path.iterdir()) == []
