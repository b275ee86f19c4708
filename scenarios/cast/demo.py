"""The agents of `perdure serve --demo`: a census that begins again and again, and a chat agent whose model is scripted."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

from perdure import Agent, ChatAgent, Detached, RunInfo, RunResult, agent_tool, exposed
from perdure.scenarios.cast.census import Census, CensusOrder, Findings, Reader, SourceFile, files_for
from perdure.scenarios.provider.faults import Pace
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from perdure.scenarios.provider.sim import SimProvider

CHILDREN: Final = 8
REST_MS: Final = 2_000  # of the quickest child; the slowest takes as often as long as there are children
PAUSE_S: Final = 3
PLACE: Final = "demo"


class RoundsDone(BaseModel):
    """How many rounds there were."""

    rounds: int


class Repeater(Agent):
    """Has a census taken, and the next one when that has ended. It goes on after every death."""

    stands_alone = True

    @exposed(repeatable=True)
    def begin(self) -> RoundsDone:
        """Begin, unless it has begun already."""
        if not self.state.get("rounds"):
            self.next_round()
        return RoundsDone(rounds=self.state["rounds"])

    def next_round(self, _payload: object = None, _occurrence: object = None) -> None:
        with self.transaction():
            number = self.state["rounds"] = self.state.get("rounds", 0) + 1
            found = enumerate(files_for((number + 1) * CHILDREN)[-CHILDREN:], 1)
            order = CensusOrder(files=[file.model_copy(update={"rest_ms": REST_MS * at}) for at, file in found])
            self.run_agent_tool(
                Census, order, run_id=f"census-{number}", detached=Detached(on_finish=self.on_census, notify=False)
            )

    async def on_census(self, run: RunInfo, result: RunResult) -> None:
        self.schedule(PAUSE_S, self.next_round)


FILES: Final = tuple(file.path for file in files_for(3))
READ: Final = tuple(ScriptedCall(name="read_source", arguments={"path": path, "rest_ms": 3_000}) for path in FILES)
STORY: Final = """An agent went for a long walk, and wrote each step down before it took it.

On the way its process was killed. Another one woke up, read what was written, and took the next step. Then the supervisor was killed, too;
nobody noticed, but for a pause in the middle of a

sentence. When it came home it told its parent, once, that it had arrived. So the story is true, and it ends here"""
SCRIPT: Final = Script(
    questions=(
        ScriptedQuestion(
            asks="count",
            rounds=(Round(thinks="Three files; an agent for each.", says="I ask three agents. ", calls=READ),),
            concludes="Counted",
        ),
        ScriptedQuestion(asks="story", concludes=STORY),
    ),
    otherwise=(
        "I am a scripted model, so that this works without a key. Write 'count', and I have three agents count source files; "
        "write 'story', and I talk for a while. Kill something meanwhile."
    ),
    piece_chars=6,
)


class Assistant(ChatAgent):
    """A chat agent whose answers are scripted, and whose tools are agents."""

    def get_model(self) -> Any:
        return SimProvider(SCRIPT, pace=Pace(first_ms=400, between_ms=50)).model()

    def tools(self) -> list[Any]:
        return [
            agent_tool(
                Reader,
                name="read_source",
                description="Count what a source file contains.",
                input=SourceFile,
                output=Findings,
            )
        ]


AGENTS: Final = (Assistant, Census, Reader, Repeater)
