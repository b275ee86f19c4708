"""The agents of `perdure run chat-recovery` and `tool-disconnect`: a guide with four real tools and two sub-agents.

For each question about a workspace (`chat_workspace`) the guide reads and searches in parallel. Then it writes a report, while one
sub-agent counts the words of a file and another, a chat agent, sums a file up. Then it may run a command. The answer follows from the
files.

The environment of the processes names the model and the workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final

from pydantic import BaseModel

from perdure import Agent, ChatAgent, RunContext, agent_tool
from perdure.scenarios.cast.environment import model_here
from perdure.scenarios.cast.workspace import SHELF, TOOLS, Workspace, read_file
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion, conclusion

EFFECTS: Final = ("write_file", "shell")
COUNTING: Final = "word_counter"
INSTRUCTIONS: Final = (
    "You work in a workshop full of text files. Make exactly the calls that you are asked for, step by step, each with exactly the "
    "arguments that are given. Make the calls of one step in parallel. If the result of a call says that its outcome is unknown, do "
    "not repeat the call."
)


class FileToCount(BaseModel):
    """The input of the word counter: a path like `shelf/000.txt`."""

    path: str


class WordCounter(Agent):
    async def run(self, input: FileToCount, run: RunContext) -> str:
        workspace = Workspace.here()
        lines = workspace.read(input.path).splitlines()
        await run.report_progress(0.2, phase="counting", message=f"{len(lines)} lines")
        await workspace.work(COUNTING)
        told = words_of(input.path, lines)
        await run.report_progress(1.0, phase="done")
        return told


def words_of(path: str, lines: Sequence[str]) -> str:
    words = [word for line in lines for word in line.split()]
    return f"{path} has {len(words)} words, {len(set(words))} different ones."


class Errand(BaseModel):
    """The input of the summariser."""

    message: str


# A chat agent, so each run is a turn.
class Summariser(ChatAgent):
    instructions = INSTRUCTIONS
    num_cpus = 0.002  # as for the guide
    chat_stream_stall_timeout_ms = 20_000

    def get_model(self) -> Any:
        return model_here()

    def tools(self) -> list[Any]:
        return [read_file]


class Guide(ChatAgent):
    instructions = INSTRUCTIONS
    num_cpus = 0.001  # a value of its own gives the guide its own hosts, which can be killed alone
    chat_stream_stall_timeout_ms = 20_000

    def get_model(self) -> Any:
        return model_here()

    def tools(self) -> list[Any]:
        return [
            *TOOLS,
            agent_tool(WordCounter, name=COUNTING, description="Count the words of one file.", output=str),
            agent_tool(Summariser, description="Sum one file up.", input=Errand, output=str),
        ]


class Quiz:
    """Questions about one workspace, and their answers. No two questions share an effect. `with_shell` adds a command to each."""

    def __init__(self, workspace: Workspace, *, with_shell: bool) -> None:
        self.workspace, self.with_shell = workspace, with_shell

    def question(self, number: int) -> ScriptedQuestion:
        plain = self.workspace.question(number, with_shell=self.with_shell)
        look, report, *command = plain.rounds
        counted = ScriptedCall(name=COUNTING, arguments={"path": self._file(number, 1)})
        summed = ScriptedCall(name="summariser", arguments={"message": self.child_question(number).asks})
        busy = Round(says="Now the report; others count and sum up.", calls=(*report.calls, counted, summed))
        return plain.model_copy(update={"rounds": (look, busy, *command)})

    def child_question(self, number: int) -> ScriptedQuestion:
        path = self._file(number, 2)
        reading = Round(thinks="It is short.", calls=(ScriptedCall(name="read_file", arguments={"path": path}),))
        asks = f"Summary of {path} for stocktaking no. {number}, please."
        return ScriptedQuestion(asks=asks, rounds=(reading,), concludes=f"Summary of {path}")

    def _file(self, number: int, place: int) -> str:
        names = sorted(path.name for path in (self.workspace.files / SHELF).iterdir())
        return f"{SHELF}/{Random(number).sample(names, 3)[place]}"

    def script(self, count: int) -> Script:
        # The guide's come first, because they quote those of the summariser.
        own = tuple(self.question(number) for number in range(count))
        return Script(questions=(*own, *(self.child_question(number) for number in range(count))))

    def told(self, number: int) -> str:
        # All steps are listed, because a real model has no script.
        question = self.question(number)
        steps = [
            f"Step {place}: " + "; ".join(call.key for call in each.calls) + "."
            for place, each in enumerate(question.rounds, 1)
        ]
        return "\n".join([question.asks, *steps, f"Then say: {question.concludes}."])

    def results(self, number: int) -> dict[str, str]:
        return {call.key: self._result(number, call) for call in self.question(number).calls}

    def _result(self, number: int, call: ScriptedCall) -> str:
        if call.name == COUNTING:
            path = call.arguments["path"]
            return words_of(path, self.workspace.read(path).splitlines())
        if call.name == "summariser":
            question = self.child_question(number)
            return conclusion(question, [self.workspace.plain_result(each) for each in question.calls])
        return self.workspace.plain_result(call)
