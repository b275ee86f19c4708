"""Every question that operators and agents ask of the ledger, in one table: its name, what is asked, and how it is answered.

What has the ledger answers: the supervisor while one serves it, else a command, from the files (`Books.is_served` is false then). The
runs that a question names are in memory by then (`runs_named`, `deleted_with`). A question that is called with the books is answered; what
is read from the store, or by looking through all runs, comes as a `Later`, which the supervisor reads in a thread. A question with an
`OverHttp` is asked over HTTP too, by its fields, and one in `Questions` by a method of its own, of a runtime and of a gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, NamedTuple, Protocol, TypeAlias, TypedDict, TypeVar

from perdure import ledger
from perdure.actors.link.performed import P, Performed, performed
from perdure.ledger import (
    HARD,
    AnswerAsk,
    AskClosed,
    AskRow,
    BadRequest,
    Cancel,
    Clear,
    First,
    Forget,
    OpenAsk,
    Pause,
    Retry,
    Send,
    Steer,
    Tell,
    UnknownAsk,
    UnknownRun,
    Verb,
    WithdrawAsk,
    check_id,
    check_word,
    digest_of,
    is_call_ask,
    name_of,
    named_ask,
    pack,
    pack_value,
    parent_of,
)
from perdure.policies import JsonObject, Limits

if TYPE_CHECKING:  # what answers is loaded by what answers: hosts and clients only ask
    from perdure.ledger import Record, Run, Store, View

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Told: TypeAlias = dict[str, Any]

TYPES_LOOKED_AT: Final = 1_000
"""How many of the newest runs tell which agent types there are, besides those in memory."""
FRAMES_AT_ONCE: Final = 1_000
"""How many events an answer tells at most of several runs. A run of more is asked for alone."""


@dataclass(frozen=True)
class Later(Generic[T_co]):
    """An answer that is still to be read."""

    read: Callable[[], T_co]


@dataclass(frozen=True)
class Books:
    """What questions are answered from.

    Args:
        stored_below: how many storages there are of what descends from an agent.
        supervisor: tells about the one that answers; None if none does.
    """

    view: View
    store: Store
    limits: Limits
    findings: list[str]
    now_ms: Callable[[], int]
    stored_below: Callable[[str], int]
    supervisor: Callable[[], Told] | None = None

    @property
    def is_served(self) -> bool:
        return self.supervisor is not None

    def found(self, run_id: str) -> Run | None:
        run = self.view.runs.get(run_id)
        return None if run is None or run.cleared else run

    def run(self, run_id: str) -> Run:
        run = self.found(run_id)
        if run is None:
            raise UnknownRun("run_id", f"no run {run_id!r} is known")
        return run

    def inspected(self, run: Run) -> Told | Later[Told]:
        told = ledger.inspected(run)
        if not run.large_output:
            return told
        body = self.store.payload
        return Later(lambda: told | {"output": _kept(body(run.run_id, "output"))})


def _kept(body: bytes | None) -> ledger.Kept | None:
    return None if body is None else ledger.Kept(body)


@dataclass(frozen=True)
class OverHttp:
    """How a question is asked over HTTP: by GET, with its fields in the path, and those that the path does not name behind it. It
    decorates the question. The docstring says there what it is, and a text in the annotation of a field what that is.

    Args:
        name: in the description.
        answer: what is answered: what the question is, or with `within` that under this name, beside what the path names.
        tells_of_agents: as `rest.operations.Operation` has it.
    """

    name: str
    path: str
    answer: type
    within: str = ""
    tells_of_agents: bool = True

    def __call__(self, kind: type[T]) -> type[T]:
        OVER_HTTP[kind] = self
        return kind


OVER_HTTP: Final[dict[type, OverHttp]] = {}


# ---------------------------------------------------------------- runs


class WhichExist(NamedTuple):
    run_ids: list[str]

    def __call__(self, books: Books) -> list[str]:
        return [run_id for run_id in self.run_ids if books.found(run_id) is not None]


class Inspect(NamedTuple):
    run_id: str

    def __call__(self, books: Books) -> Told | Later[Told] | None:
        run = books.found(self.run_id)
        return None if run is None else books.inspected(run)


# Refused if there is no such run.
class Show(NamedTuple):
    run_id: str

    def __call__(self, books: Books) -> Told | Later[Told]:
        run = books.run(self.run_id)
        told, options = books.inspected(run), {"options": run.options}
        return Later(lambda: told.read() | options) if isinstance(told, Later) else told | options


class Receipt(NamedTuple):
    """What became of an event that was sent to a run?"""

    run_id: str
    mail_id: str

    def __call__(self, books: Books) -> Told:
        return ledger.receipt(books.view, books.run(self.run_id), self.mail_id)


class Explained(TypedDict):
    """Where a run stands, and why."""

    run_id: str
    lines: list[str]


@OverHttp("explain_run", "/api/runs/{run_id}/explain", Explained, within="lines")
class Explain(NamedTuple):
    """Where a run stands and why, and what comes next."""

    run_id: str

    def __call__(self, books: Books) -> list[str]:
        run = books.run(self.run_id)
        return ledger.explain(books.view, run, books.now_ms(), books.limits, served=books.is_served)


class Frames(NamedTuple):
    run_id: str
    after: int

    def __call__(self, books: Books) -> Later[list[Told]]:
        run = books.run(self.run_id)

        def read() -> list[Told]:
            rows = books.store.facts(run.run_id, self.after, frames_only=True)
            return [frame for row in rows if (frame := ledger.frame_of(row, run, replay=True)) is not None]

        return Later(read)


class KeptFrames(NamedTuple):
    """The kept events of these runs, as far as an answer has room. None stands for a run that has not ended, or has too many events."""

    run_ids: list[str]

    def __call__(self, books: Books) -> list[list[Told] | None] | Later[list[list[Told] | None]]:
        told: list[Run | None] = []
        room = FRAMES_AT_ONCE
        for run in map(books.found, self.run_ids):
            if run is None or run.status not in HARD or run.frames > FRAMES_AT_ONCE:
                told.append(None)
                continue
            room -= run.frames
            if room < 0:
                break
            told.append(run)
        ended = {run.run_id: run for run in told if run is not None}
        frames: dict[str, list[Told]] = {run_id: [] for run_id in ended}
        if not ended:
            return [None for _ in told]
        span = min(run.first_seq for run in ended.values()), max(run.last_seq for run in ended.values())

        def read() -> list[list[Told] | None]:
            for row in books.store.frames(list(ended), *span):
                frame = ledger.frame_of(row, ended[row.subject], replay=True)
                frames[row.subject] += [frame] if frame is not None else []
            return [None if run is None else frames[run.run_id] for run in told]

        return Later(read)


# By the time of their requests.
class ListRuns(NamedTuple):
    parent: str | None
    statuses: list[str] | None
    before_ms: float | None
    limit: int
    first: First = "oldest"

    def __call__(self, books: Books) -> Later[list[Told]]:
        runs = books.view.runs.copy()  # before the snapshot is read: what leaves memory meanwhile is in one of the two
        wanted, asked = ledger.Wanted(self.parent, statuses=self.statuses, until_ms=self.before_ms), self[3:]
        return Later(lambda: ledger.listed(runs, books.store.wanted_runs(wanted, *asked), wanted, *asked))


class PageOfRuns(NamedTuple):
    """A page of runs, newest request first, and where the next one begins. `wanted` are the fields of a filter (`ledger.Wanted`)."""

    wanted: Sequence[object]
    limit: int

    def __call__(self, books: Books) -> Later[Told]:
        runs, wanted, limit = books.view.runs.copy(), ledger.checked_wanted(self.wanted), self.limit

        def read() -> Told:
            rows = books.store.wanted_runs(wanted, ledger.rows_for(wanted, limit))
            page = ledger.page_of(runs, rows, wanted, limit)
            return {"runs": [ledger.line(run) for run in page.runs], "next": page.next}

        return Later(read)


class ChosenRuns(NamedTuple):
    """Which runs does a filter choose for a verb? Of a page of so many of the newest: how many have each status, the places and ids of the
    first few (`told`), where the next page begins, and the ledger's time. Refused if no run of this type is known, and a similar one is."""

    verb: str
    wanted: Sequence[object]
    limit: int
    told: int

    def __call__(self, books: Books) -> Later[Told]:
        verb = check_word("verb", self.verb, Verb)
        wanted, now_ms, runs = ledger.checked_wanted(self.wanted, verb), books.now_ms(), books.view.runs.copy()

        def read() -> Told:
            rows = books.store.wanted_runs(wanted, ledger.rows_for(wanted, self.limit))
            page = ledger.chosen_of(runs, rows, wanted, self.limit)
            if not page.places and wanted.agent_type is not None and wanted.before is None:
                _check_type(wanted.agent_type, runs, books.store)
            return {
                "statuses": page.statuses,
                "runs": page.places[: self.told],
                "next": page.next,
                "now_ms": now_ms,
            }

        return Later(read)


def _check_type(agent_type: str, runs: Mapping[str, Run], store: Store) -> None:
    if any(run.agent_type == agent_type for run in runs.values()):
        return
    if store.wanted_runs(ledger.Wanted(agent_type=agent_type), 1):
        return
    kept = (str(row.columns[1]) for row in store.wanted_runs(ledger.Wanted(), TYPES_LOOKED_AT))
    near = ledger.near_types(agent_type, [*(run.agent_type for run in runs.values()), *kept])
    if near:
        raise BadRequest("type", f"no run of {agent_type!r:.200} is known; there are runs of {', '.join(near)}")


class CountAtStake(NamedTuple):
    run_ids: list[str]
    agent_id: str = ""

    def __call__(self, books: Books) -> Later[dict[str, int]]:
        for run_id in self.run_ids:
            books.run(run_id)
        found = ledger.at_stake(books.view, self.run_ids, self.agent_id)
        return Later(lambda: found.told(books.stored_below))


class ListAsks(NamedTuple):
    """The open questions to people (`ledger.list_asks`), of a group or person or all, or asked by a run or agent; with `closed`, those that
    runs in memory had too."""

    to: str | None = None
    closed: bool = False
    limit: int = 1_000
    asked_by: str | None = None

    def __call__(self, books: Books) -> list[AskRow]:
        return ledger.list_asks(
            books.view, self.to, self.limit, books.now_ms(), closed=self.closed, asked_by=self.asked_by
        )


class AsksBelow(NamedTuple):
    """The open questions of a run and of those that it has led to (`ledger.asks_below`)."""

    run_id: str

    def __call__(self, books: Books) -> list[AskRow]:
        return ledger.asks_below(books.view, self.run_id)


# Refused if there is none.
class ShowAsk(NamedTuple):
    run_id: str
    number: int

    def __call__(self, books: Books) -> AskRow:
        run = books.found(self.run_id)
        ask = None if run is None else run.ask(self.number)
        if run is None or ask is None:
            named = ledger.ask_id(self.run_id, self.number)
            raise UnknownAsk("ask_id", f"no question {named!r} is known; `perdure asks` lists the open ones")
        return ledger.ask_told(run, ask)


class ShowCallAsk(NamedTuple):
    """An open question about a call of a chat. Refused if it is closed, or there is none."""

    ask_id: str

    def __call__(self, books: Books) -> AskRow:
        agent, _ = AnswersTo(self.ask_id)(books)
        if self.ask_id not in books.view.asked_calls:
            raise AskClosed("ask_id", f"{self.ask_id} is closed: it was answered, or its turn waits for it no more")
        return ledger.call_told(agent, self.ask_id, ledger.asked_call(books.view, self.ask_id), books.now_ms())


class AnswersTo(NamedTuple):
    """Who takes the answer to a question about a call, which may be closed: the agent, and what its class asks of its host. Refused if
    there is no such question, or it was closed long ago."""

    ask_id: str

    def __call__(self, books: Books) -> list[Any]:
        view = books.view
        agent = view.asked_calls.get(self.ask_id) or view.closed_calls.get(self.ask_id)
        if agent is None:
            words = f"no question {self.ask_id!r:.200} is known; `perdure asks` lists the open ones"
            raise UnknownAsk("ask_id", words)
        return [agent, view.home_of(agent)]


def about_ask(ask_id: str) -> tuple[str, *tuple[object, ...]]:
    """By which question, with what, a question to people is shown. Raises `UnknownAsk` for what is no id of one."""
    return ("call_ask", ask_id) if is_call_ask(ask_id) else ("ask", *named_ask(ask_id))


# ---------------------------------------------------------------- the directory


class Overview(NamedTuple):
    live_max: int = 200

    def __call__(self, books: Books) -> Told:
        told = ledger.overview(books.view, self.live_max, served=books.is_served)
        return told | {"supervisor": None if books.supervisor is None else books.supervisor()}


class Audited(TypedDict):
    """The account of all mail."""

    enqueued: int
    delivered: int
    superseded: int
    suppressed: int
    parked: int
    pending: int
    balanced: bool
    parked_mail: list[JsonObject]
    findings: list[str]


@OverHttp("audit", "/api/audit", Audited)
class Audit(NamedTuple):
    """The account of all mail, parked mail, and what was found at the start."""

    def __call__(self, books: Books) -> Told:
        return {**ledger.audit(books.view), "parked_mail": ledger.parked(books.view), "findings": books.findings}


class LimitsTold(TypedDict):
    """The limits in force; an infinite one is null."""

    limits: JsonObject


@OverHttp("limits", "/api/limits", LimitsTold, within="limits", tells_of_agents=False)
class ShowLimits(NamedTuple):
    """The limits in force."""

    def __call__(self, books: Books) -> Told:
        return asdict(books.limits)


class ShowAgent(NamedTuple):
    """Where is an agent, and what does the ledger hold for it? None if it knows nothing of it."""

    agent_id: str

    @property
    def run_ids(self) -> list[str]:
        return [name_of(self.agent_id)]  # the child of a run bears the run's id as its name

    def __call__(self, books: Books) -> Told | Later[Told | None] | None:
        view, store, agent = books.view, books.store, self.agent_id
        told = ledger.about_agent(view, agent, served=books.is_served)
        if ledger.is_in_memory(view, agent):
            return told
        if view.is_begun_anew(agent):
            return None
        cleared = set(view.asked_for.get(agent, ()))

        def read() -> Told | None:
            asked_for = requested_by(store, [agent], len(cleared) + 1)
            is_known = store.records("agents", [agent]) or any(each.key not in cleared for each in asked_for)
            return told if is_known else None

        return Later(read)


class Upgrade(NamedTuple):
    """Which code stands where, of this type or of all? With `now`, agents that have older code and are at rest leave at once."""

    agent_type: str | None = None
    now: bool = False

    def __call__(self, books: Books) -> list[Told]:
        return ledger.code_standings(books.view, self.agent_type, served=books.is_served)


# ---------------------------------------------------------------- of the supervisor alone


class WindDown(NamedTuple):
    """Begin nothing new for a while. How many agents are at work?"""


class Keep(NamedTuple):
    """A wish with its arguments: `storages`, `hold`, or `cut` (see `actors.supervisor.queries`)."""

    wish: str
    arguments: list[object]


class ChangedRuns(NamedTuple):
    """Which runs have changed after a fact? See `actors.supervisor.queries`."""

    after: int | None
    limit: int


class LogMachines(NamedTuple):
    """Which machines have logs of their own? Their names, by keys."""


class LogsOf(NamedTuple):
    """What has a machine's log (`actors.log_files`)? Without a `position` the newest records, `most` of them. After one what is
    written then, for which it may wait for `hold_ms`. The answer has a `page`, or says why it is `missing`."""

    machine: str
    wanted: list[Any]
    most: int
    position: Sequence[tuple[int, int]] | None
    hold_ms: int


Query: TypeAlias = (
    WhichExist | Inspect | Show | Receipt | Explain | Frames | KeptFrames | ListRuns | PageOfRuns | ChosenRuns | CountAtStake
    | ListAsks | AsksBelow | ShowAsk | ShowCallAsk | AnswersTo | Overview | Audit | ShowLimits | ShowAgent | Upgrade
    | WindDown | Keep | ChangedRuns | LogMachines | LogsOf
)  # fmt: skip
"""What is answered without a new fact."""

Steering: TypeAlias = AnswerAsk | Cancel | Clear | Forget | OpenAsk | Pause | Retry | Send | Steer | Tell | WithdrawAsk
"""What becomes facts."""

QUESTIONS: Final[dict[str, type[Query | Steering]]] = {
    "inspect": Inspect,
    "show": Show,
    "explain": Explain,
    "receipt": Receipt,
    "frames": Frames,
    "kept": KeptFrames,
    "list": ListRuns,
    "page": PageOfRuns,
    "chosen": ChosenRuns,
    "at_stake": CountAtStake,
    "ps": Overview,
    "audit": Audit,
    "limits": ShowLimits,
    "agent": ShowAgent,
    "upgrade": Upgrade,
    "wind_down": WindDown,
    "keep": Keep,
    "changed": ChangedRuns,
    "log_machines": LogMachines,
    "logs_of": LogsOf,
    "cancel": Cancel,
    "clear": Clear,
    "forget": Forget,
    "retry": Retry,
    "pause": Pause,
    "send": Send,
    "steer": Steer,
    "tell": Tell,
    "asks": ListAsks,
    "asks_below": AsksBelow,
    "ask": ShowAsk,
    "call_ask": ShowCallAsk,
    "answers_to": AnswersTo,
    "answer": AnswerAsk,
}
"""By their names, for `ask`."""


def question_of(name: str, *args: Any) -> Query | Steering:
    kind = QUESTIONS.get(name)
    if kind is None:
        raise BadRequest("question", f"{name!r} is not one that a supervisor answers")
    return kind(*args)


class QuestionOf(Protocol[T_co]):
    """A question, by what it is answered with."""

    def __call__(self, books: Books, /) -> T_co | Later[T_co]: ...


def asked(question: Callable[Concatenate[Any, P], QuestionOf[T]]) -> Performed[P, T]:
    return performed(question, "_asked")


class Questions:
    """The questions for which a runtime and a gateway have the same methods."""

    @asked
    def explain(self, run_id: str) -> QuestionOf[list[str]]:
        """In sentences: where a run is, why, and what comes next."""
        return Explain(run_id)

    @asked
    def audit(self) -> QuestionOf[Told]:
        """The audit equation, parked mail, and what a boot found."""
        return Audit()


def sent_event(
    run_id: str,
    event: str,
    value: object,
    event_id: str | None,
    new_id: str,
    limits: Limits,
    sender: str = "",
) -> Send:
    """An event to be sent, checked. One with an `event_id` of the sender's is the same each time. Raises `BadRequest`."""
    check_id("run_id", run_id, limits.id_max)
    name = check_id("event", event, limits.id_max)
    body = pack_value("value", value, limits.input_bytes_max)
    if event_id is not None:
        new_id = digest_of(pack([sender, run_id, event, check_id("event_id", event_id, limits.id_max)]))
    return Send(f"event!{new_id}", run_id, name, sender, body, 0)


def runs_named(question: object) -> list[str]:
    # What is tried again may be a run.
    if isinstance(question, Retry):
        return [question.key]
    run_id = getattr(question, "run_id", None)
    return list(getattr(question, "run_ids", ())) if run_id is None else [run_id]


def deleted_with(view: View, question: object) -> list[str]:
    # What these agents and their families had asked for is to be in memory as well.
    if isinstance(question, Steer):
        question = Clear(question.run_ids) if question.verb == Verb.CLEAR else None
    if not isinstance(question, Clear | Forget | CountAtStake):
        return []
    children = [run.child for key in runs_named(question) if (run := view.runs.get(key)) is not None]
    return children if isinstance(question, Clear) or not question.agent_id else [*children, question.agent_id]


# The runs in the snapshot that these agents and their families had asked for: with one look for all that are nobody's sub-agents.
def requested_by(store: Store, agents: list[str], limit: int) -> list[Record]:
    roots = [each for each in agents if not parent_of(each)]
    found = store.runs_of(roots, limit) if roots else []
    for agent in agents:
        if parent_of(agent):
            found += store.family_runs(agent, limit)
    return found
