"""Every message between peers, in one table.

On the wire a message is a list: the number of its kind in `TABLE`, then its fields; a stretch of one kind goes in columns (`wire`). So a
supervisor and its peers must have the same table: each frame names it, and a supervisor refuses a peer that has another.

What many runs that are alike have in common is said once: a batch of first attempts goes to its host as one `Starts`, and their ends to the
peers that wait for them as one `RunsEnded`. Runs that are not alike have a `Start` and a `RunEnded` of their own, and both sides do with
the members of a batch what they do with those.

A stimulus (`ledger.stimulus`) is also the message that brings it. An `Ask` wraps a question, which is a message of its own: either a
stimulus whose sender waits for its acceptance, or something that the supervisor answers without a new fact. One `Reply` answers each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias, get_args

from perdure.actors.link.questions import Query, Steering
from perdure.ledger import (
    Adopt,
    Alarm,
    AskCalls,
    Awake,
    Chunk,
    Ended,
    Handled,
    Milestone,
    Progress,
    PromiseUndo,
    Released,
    Request,
    Tell,
    Took,
    Undoing,
    Unstarted,
    Up,
    Waiting,
)

Plain: TypeAlias = Any
"""Plain data: None, booleans, numbers, strings, bytes, lists and dictionaries of these."""

Fields: TypeAlias = dict[str, Plain]

HostNeeds: TypeAlias = list[Plain] | None
"""What an agent's class asks of its host, in plain form."""

MailForAgent: TypeAlias = tuple[str, str, str, Fields, Fields]
"""Mail id, slot, handler, the run, the content."""


class ClientHello(NamedTuple):
    """Begins the session of a client. `waits` names the runs whose ends it waits for."""

    waits: list[str]


class HostHello(NamedTuple):
    """Begins the session of a host. `tenants` are `(agent, incarnation)`; `farewells` are incarnations whose goodbye is on its way. `logs`
    is the key of its machine's logs, if the machine has its own."""

    pid: int
    node: str
    rss_mb: int
    tenants: list[tuple[str, int]]
    farewells: list[int]
    waits: list[str]
    logs: str = ""


class Ask(NamedTuple):
    """A question. The `Reply` bears the same `ref`."""

    ref: str
    question: Question


class Wait(NamedTuple):
    """Runs whose ends the sender still waits for, after every request that is still under way."""

    run_ids: list[str]


class Follow(NamedTuple):
    """Asks for the events of a run, or of all runs of a parent (by its address), from now on, or for no more of them."""

    topic: str
    wanted: bool


class Observe(NamedTuple):
    """Asks for everything that happens from now on, or for no more of it."""

    wanted: bool


class CallAnswered(NamedTuple):
    ref: str
    ok: bool
    value: object


class CallCut(NamedTuple):
    """A call has begun, or it is unknown whether it has, and will not be answered."""

    ref: str


class CallAstray(NamedTuple):
    """The life that a call was meant for is not here. The call did nothing."""

    ref: str


class HostVitals(NamedTuple):
    """How much memory the host holds, whether a thread was left behind, how late its event loop was, and how many writes stand in line."""

    rss_mb: int
    is_worn: bool
    late_ms: int
    writes_waiting: int


class HostRests(NamedTuple):
    """How many runs on the host merely wait now, in memory, and so leave their places to others."""

    runs: int


class Prepared(NamedTuple):
    """The host has imported the code that it was told to import (`Prepare`)."""


class InboxKept(NamedTuple):
    """The mails that an agent remembers to have handled. `MailSettled` says which of them may be forgotten."""

    agent_id: str
    incarnation: int
    mail_ids: list[str]


class Patches(NamedTuple):
    """What agents of a host have committed to storages that the supervisor carries (`ledger.storage.patches`), in order. It goes before
    whatever the host says after these commits."""

    patches: list[bytes]


class LogsRead(NamedTuple):
    ref: str
    page: bytes
    problem: str


class CodeFiles(NamedTuple):
    """Files of the code directory, by names (`actors.code.carried_code`): from a peer to the supervisor, which keeps them, and from there
    to the others. It goes before whatever needs them."""

    files: dict[str, bytes]


class StorageUnread(NamedTuple):
    """A host could not read what `HoldStorage` has named, and waits to be told anew: where it is by now, or, with `inline`, what it is."""

    agent_id: str
    inline: bool


class HoldStorage(NamedTuple):
    """What the storage of an agent is that is about to begin a life on this host: how many patches it has, and its files; or why it is
    lost. Of a large one that the host can read, `base` says where (`ledger.storage.signed_storage`). What is in the files, or has changed
    in them since, is said in several messages if it is much; all but the last of them say that there is more."""

    agent_id: str
    number: int
    parts: list[Plain]
    lost: str = ""
    base: Plain = None
    more: bool = False


class Happened(NamedTuple):
    channel: str
    type: str
    agent: str
    payload: Mapping[str, Plain]
    at_ms: int


class Start(NamedTuple):
    """Carry an attempt at a run. With `collect`, only an earlier result is looked for. `reported` is what the storage must
    have. What attempts up to `after` failed with does not count. A wait until `over_ms` or earlier is over, whatever a clock says. With
    `undo` its steps are undone: how it ends after that, and why."""

    agent_id: str
    incarnation: int
    run_id: str
    attempt: int
    input: bytes
    collect: bool
    options: dict[str, object]
    reported: int = 0
    after: int = 0
    over_ms: float = 0
    undo: list[str] | None = None


class Starts(NamedTuple):
    """Carry the first attempts at many runs of one type, with the same options: `Start` for each."""

    agent_type: str
    options: dict[str, object]
    run_ids: list[str]
    incarnations: list[int]
    inputs: list[bytes]


class Wake(NamedTuple):
    """Bring an agent up. `cause` says how its last life was lost, if it was, and `excused` whether on purpose; `asks` whether the ledger
    knows of calls of it that wait for people."""

    agent_id: str
    incarnation: int
    reported: int = 0
    cause: str = ""
    asks: bool = False
    excused: bool = False


class Deliver(NamedTuple):
    agent_id: str
    incarnation: int
    mails: list[MailForAgent]  # in order


class PauseRun(NamedTuple):
    """The run is paused: its child is to stop at its next step."""

    agent_id: str
    incarnation: int
    run_id: str


class MailSettled(NamedTuple):
    """Handled mails that will not be sent to this life again."""

    agent_id: str
    incarnation: int
    mail_ids: list[str]


class Stop(NamedTuple):
    """End the work of an agent's life and let go of it."""

    agent_id: str
    incarnation: int


class MakeCall(NamedTuple):
    """Call a method of an agent. With `lost`, another life of it may have begun the call before. `trace` is that of the `Call`."""

    agent_id: str
    incarnation: int
    ref: str
    method: str
    body: bytes
    repeatable: bool
    lost: bool
    trace: str = ""


class Signal(NamedTuple):
    agent_id: str
    incarnation: int
    run: Fields
    snapshot: Fields


class Observed(NamedTuple):
    observed: bool
    followed: bool


class Prepare(NamedTuple):
    types: list[str]


class Passivate(NamedTuple):
    """Let idle agents go at once; these, if they are named, as soon as they are idle. For `begin_nothing_s` seconds the host leaves new
    turns and webhooks to the supervisor (`direct_calls`)."""

    agents: list[str] | None = None
    begin_nothing_s: float = 0.0


class RetireHost(NamedTuple):
    """End."""


class ReadLogs(NamedTuple):
    """Read in the logs of this machine. `LogsRead` bears the same `ref`."""

    ref: str
    asked: list[Plain]


class Ping(NamedTuple):
    """Show that you are alive: the next exchange does."""


class RunEnded(NamedTuple):
    run_id: str
    outcome: dict[str, object]


class RunsEnded(NamedTuple):
    """Many runs of one type that were waited for have completed: `RunEnded` for each."""

    agent_type: str
    run_ids: list[str]
    outputs: list[bytes | None]
    summaries: list[str]

    def outcomes(self) -> Iterator[tuple[str, dict[str, object]]]:
        for run_id, output, summary in zip(self.run_ids, self.outputs, self.summaries, strict=True):
            yield (
                run_id,
                {
                    "status": "completed",
                    "summary": summary,
                    "error": "",
                    "output": output,
                    "agent_type": self.agent_type,
                },
            )


class Refused(NamedTuple):
    """A request was refused. `content` is what it asked for: others may have asked for something else under the run's id."""

    run_id: str
    error: list[Plain]
    content: list[object]


class Exists(NamedTuple):
    """The run of a request existed before, with this status. One that is awaited is told only if its code is older than what came since."""

    run_id: str
    status: str
    has_older_code: bool = False


class Reply(NamedTuple):
    """The answer to an `Ask`, or an error in plain form."""

    ref: str
    ok: bool
    value: Plain


class RunEvent(NamedTuple):
    frame: Fields


class KeptBack(NamedTuple):
    """What keeps back that for which the client waits now: `(run, words)` for each run of which that has changed, with an empty run for
    whatever else it waits for. What is not kept back any more has no words."""

    told: list[tuple[str, list[str]]]


class Call(NamedTuple):
    """Call a method of an agent, at most once unless it is repeatable. `heard` is the last fact that the caller knew of; `again` says that
    another life of the supervisor was asked before. `standalone` is what the class says (`ledger.addressing`), `trace` that of the
    caller."""

    agent_id: str
    method: str
    body: bytes
    home: HostNeeds
    repeatable: bool
    sender: str
    heard: int
    again: bool
    standalone: str
    trace: str = ""


class Abort(NamedTuple):
    """End the lives of an agent and its descendants, and tell the callers that wait for them why."""

    agent_id: str
    reason: str


class CopyStorage(NamedTuple):
    """Give an agent that has no storage a copy of another one's, which a life of that has made. `number` is `first_of_copy`
    (`ledger.storage.patches`)."""

    source_id: str
    incarnation: int
    target_id: str
    number: int
    content: bytes


Question: TypeAlias = Call | Abort | Tell | CopyStorage | PromiseUndo | Steering | Query

Report: TypeAlias = (
    Up
    | Progress
    | Milestone
    | Chunk
    | Ended
    | Undoing
    | Unstarted
    | Waiting
    | Took
    | Released
    | Awake
    | Alarm
    | AskCalls
    | Handled
)
"""The stimuli that hosts report."""

FromPeer: TypeAlias = Request | Ask | Wait | CodeFiles
FromClient: TypeAlias = ClientHello | Follow | Observe | Adopt
FromHost: TypeAlias = (
    HostHello
    | Report
    | CallAnswered
    | CallCut
    | CallAstray
    | HostVitals
    | HostRests
    | Prepared
    | InboxKept
    | Patches
    | StorageUnread
    | LogsRead
)
ToHost: TypeAlias = (
    Start | Starts | Wake | Deliver | PauseRun | MailSettled | Stop | MakeCall | Signal | Observed | Prepare | Passivate | RetireHost | Ping
    | HoldStorage | ReadLogs
)  # fmt: skip
ToPeer: TypeAlias = RunEnded | RunsEnded | Refused | Exists | Reply
FromSupervisor: TypeAlias = ToHost | RunEvent | KeptBack | ToPeer | Happened | CodeFiles
Message: TypeAlias = FromPeer | FromClient | FromHost | FromSupervisor


class Direction(StrEnum):
    """Who says a message to whom. A peer is a host or a client."""

    FROM_PEER = "from host or client to supervisor"
    FROM_CLIENT = "from client to supervisor"
    FROM_HOST = "from host to supervisor"
    FROM_HOST_TO_CLIENTS = "from host to supervisor, and on to clients"
    TO_HOST = "from supervisor to host"
    TO_CLIENT = "from supervisor to client"
    TO_PEER = "from supervisor to host or client"
    BETWEEN = "from host or client to supervisor, and on to others"
    ASKED = "from host or client to supervisor, within an `Ask`"


TABLE: Final[dict[type[Message | Question], Direction]] = {
    **dict.fromkeys(get_args(FromPeer), Direction.FROM_PEER),
    **dict.fromkeys(get_args(FromClient), Direction.FROM_CLIENT),
    **dict.fromkeys(get_args(FromHost), Direction.FROM_HOST),
    **dict.fromkeys(get_args(ToHost), Direction.TO_HOST),
    **dict.fromkeys(get_args(ToPeer), Direction.TO_PEER),
    **dict.fromkeys(get_args(Question), Direction.ASKED),
    RunEvent: Direction.TO_CLIENT,
    KeptBack: Direction.TO_CLIENT,
    Happened: Direction.FROM_HOST_TO_CLIENTS,
    CodeFiles: Direction.BETWEEN,
}
"""Every kind of message, and who says it to whom. The position of a kind is its number on the wire."""

REPORTS: Final = frozenset(get_args(Report))
