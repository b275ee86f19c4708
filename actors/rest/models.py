"""What REST takes and answers, as models. Names that end in `_ms` are milliseconds, those in `_at_ms` milliseconds since 1970."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, StringConstraints

from perdure.actors.life.conditions import of_parts
from perdure.actors.rest.operations import Id, Taken
from perdure.ledger import BY_OPERATOR, AskStatus, BadRequest, Status, Verb, Wanted, check_id
from perdure.policies import Condition, EndOf, Json, JsonObject, MilestoneOf

Words = Annotated[str, StringConstraints(max_length=200)]
SomeWords = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Seq = Annotated[int, Field(ge=0, lt=2**53)]


def _as_list(given: object) -> object:
    return given if isinstance(given, list) else [given]


Statuses = Annotated[list[Status], BeforeValidator(_as_list), Field(max_length=10)]


class RunsChosen(Taken):
    """Which runs: those that fit everything that is said."""

    status: Annotated[Statuses | None, Field(description="Only runs with this status; repeatable.")] = None
    type: Annotated[Id | None, Field(description="Only runs of this agent type, as module:Class.")] = None
    parent: Annotated[Id | None, Field(description="Only runs that this agent requested, as name@module:Class.")] = None
    q: Annotated[Words, Field(description="Only runs with this in their id, type or parent, whatever the case.")] = ""
    prefix: Annotated[Id | None, Field(description="Only runs whose ids begin with this.")] = None
    error: Annotated[
        SomeWords | None,
        Field(
            description="Only runs with this in their error, or in why they were given up or parked, whatever the case."
        ),
    ] = None
    parked: Annotated[bool, Field(description="Only runs that are parked.")] = False
    undoing: Annotated[bool, Field(description="Only runs that undo their steps.")] = False
    requested_since_ms: Annotated[
        Seq | None, Field(description="Only runs that were requested from this instant on.")
    ] = None
    requested_before_ms: Annotated[Seq | None, Field(description="Only runs that were requested before this one.")] = (
        None
    )
    ended_since_ms: Annotated[Seq | None, Field(description="Only runs that ended from this instant on.")] = None
    ended_before_ms: Annotated[Seq | None, Field(description="Only runs that ended before this one.")] = None

    def wanted(self) -> Wanted:
        """The filter as the ledger is asked."""
        return Wanted(
            self.parent,
            self.type,
            None if self.status is None else [str(each) for each in self.status],
            self.q,
            prefix=self.prefix or "",
            since_ms=self.requested_since_ms,
            until_ms=self.requested_before_ms,
            ended_since_ms=self.ended_since_ms,
            ended_until_ms=self.ended_before_ms,
            error=self.error or "",
            parked=self.parked,
            undoing=self.undoing,
        )


class RunsAsked(RunsChosen):
    """Which runs, and which of their pages."""

    before: Annotated[Seq | None, Field(description="The `next` of the page before.")] = None
    limit: Annotated[int, Field(ge=1, le=500, description="Number of runs on a page.")] = 50


class BulkAsked(RunsChosen):
    """What is done to which runs: those that are named, or those that the filters choose, or all. With `next` and `began_ms` of an answer
    it goes on where that ended."""

    verb: Verb
    run_ids: Annotated[list[Id] | None, Field(min_length=1, max_length=1000)] = None
    all: Annotated[bool, Field(description="All runs are meant; no filter goes with it.")] = False
    dry_run: Annotated[bool, Field(description="Only count them.")] = False
    reason: Annotated[
        str, StringConstraints(max_length=1000), Field(description="Of a cancellation; the parents are told.")
    ] = BY_OPERATOR
    before: Annotated[Seq | None, Field(description="The `next` of the answer before.")] = None
    began_ms: Annotated[Seq | None, Field(description="The `began_ms` of the answer before.")] = None

    def wanted(self) -> Wanted:
        """The filter as the ledger is asked."""
        chosen = super().wanted()
        if self.run_ids is None:
            return chosen
        if chosen != Wanted():
            raise BadRequest("run_ids", "name runs, or choose them by filters, but not both")
        return Wanted(run_ids=self.run_ids)


class BulkTold(BaseModel):
    """What was found and done. If `next` is not null there are more: ask again with it, and with `began_ms`."""

    verb: Verb
    dry_run: bool
    found: Annotated[int, Field(description="How many were chosen; with `dry_run` how many would be hit.")]
    statuses: dict[Status, int]
    hit: int
    others: Annotated[int, Field(description="Other runs that those took along.")]
    already: int
    gone: Annotated[int, Field(description="Cleared meanwhile, or not chosen any more.")]
    refused: Annotated[dict[str, int], Field(description="How many could not be done, by reason.")]
    sample: list[str]
    next: int | None
    began_ms: int


class OverviewAsked(Taken):
    """How much of an overview."""

    live: Annotated[int, Field(ge=0, le=1000, description="Number of live runs that are listed.")] = 200


class EventsAsked(Taken):
    """From which event on."""

    after: Annotated[
        int | None, Field(ge=-1, lt=2**53, description="The last event that is known; `Last-Event-ID` wins.")
    ] = None


class LiveAsked(OverviewAsked, EventsAsked):
    """From which event on, and how much of an overview."""


class AtStakeTold(BaseModel):
    """How much would be deleted."""

    runs: Annotated[int, Field(description="Runs, with those that their children requested.")]
    live: Annotated[int, Field(description="Those of them that are live. They are aborted first.")]
    sub_agents: int
    mail: Annotated[int, Field(description="Mail on the way that would be withdrawn.")]


class RunLine(BaseModel):
    """A run in a list."""

    run_id: str
    agent_type: str
    parent: Annotated[str, Field(description="The address of the agent that requested it; empty if none did.")]
    parent_tool_call_id: str | None
    display_order: int
    display: Json
    input_preview: Json
    detached: bool
    attempt: int
    host: str | None
    waits: JsonObject | None = None
    waits_for: Annotated[str | None, Field(description="In words, what has to come true before it begins.")] = None
    undoing: Annotated[bool, Field(description="Whether its steps are being undone; it ends when they are.")] = False
    status: Status
    started_at_ms: int
    completed_at_ms: int | None
    progress: Annotated[
        JsonObject | None, Field(description="`fraction`, `phase`, `message`, `at_ms` and what else was reported.")
    ]
    milestones: list[str]
    outcome: Annotated[JsonObject, Field(description="`summary`, `error`, and `reason` of an interruption.")]


class RunsPage(BaseModel):
    """Runs, the newest request first."""

    runs: list[RunLine]
    next: Annotated[int | None, Field(description="`before` of the next page; null on the last.")]


class HostLine(BaseModel):
    """A host."""

    host: str
    pid: int
    up: bool
    tenants: Annotated[int, Field(description="Agents that are awake there.")]
    load: int
    rss_mb: int
    node: str


class ReplicaLine(BaseModel):
    """Where a directory is followed to, and how far that is behind."""

    url: str
    lag_ms: int
    lag_max_ms: int
    behind_ms: int
    filled: Annotated[
        bool, Field(description="Whether this life has compared everything; the lag is kept from then on.")
    ]
    trouble: str


class Served(BaseModel):
    """The supervisor."""

    pid: int
    node: str
    commits: Annotated[int, Field(description="How many commits this life has made.")]
    commit_ms: Annotated[float, Field(description="How many milliseconds they took together.")]
    longest_turn_ms: Annotated[float, Field(description="How many the longest of its turns took besides its commit.")]
    replica: ReplicaLine | None = None


class Unstartable(BaseModel):
    """Hosts that do not come up: of which pool, why, after how many tries, and since when."""

    pool: str
    told: str
    cause: str
    starts: int
    since_at_ms: int


class Elsewhere(BaseModel):
    """A node of the cluster that does not see the data directory."""

    node: str
    told: str


class Draining(BaseModel):
    """A node of the cluster that drains, and when it ends, if that is known."""

    node: str
    told: str
    until_ms: int | None


class AsksStand(BaseModel):
    """The questions to people in all."""

    open: Annotated[int, Field(description="How many are open.")]
    mark: Annotated[str, Field(description="Another one when any of them has changed.")]


class OverviewTold(BaseModel):
    """What `perdure ps` tells."""

    epoch: Annotated[int, Field(description="The life of the supervisor.")]
    facts: int
    runs: Annotated[dict[Status, int], Field(description="How many runs have each status.")]
    live: list[RunLine]
    hosts: list[HostLine]
    unstartable: list[Unstartable]
    elsewhere: list[Elsewhere]
    draining: list[Draining]
    agents: Annotated[
        list[tuple[str, str, int]], Field(description="Agents that are awake, at most 1,000: address, host, life.")
    ]
    alarms: int
    waiting: int
    asks: AsksStand
    audit: JsonObject
    code: JsonObject
    kept: dict[str, float | None]
    supervisor: Served | None


class RunTold(BaseModel):
    """Everything about a run."""

    run_id: str
    agent_type: str
    status: Status
    attempt: int
    retries: int
    parent: str
    parent_tool_call_id: str | None
    display_order: int
    display: Json
    input_preview: Json
    detached: bool
    started_at_ms: int
    completed_at_ms: int | None
    source: Json = None
    summary: str
    error: str
    output: Json
    large: bool = False
    trace: str = ""
    reason: str | None = None
    child_still_running: bool | None = None
    digest: str
    host: str | None
    waits_for_host: bool = False
    waits: JsonObject | None = None
    waits_for: Annotated[str | None, Field(description="In words, what has to come true before it begins.")] = None
    undoing: Annotated[bool, Field(description="Whether its steps are being undone; it ends when they are.")] = False
    parked: Annotated[str | None, Field(description="Why it waits for other code or for a person.")] = None
    lost_by: str | None = None
    signal_at_ms: int | None
    progress: JsonObject | None = None
    milestones: list[JsonObject]
    deliveries: dict[str, str]
    options: JsonObject


class HostsTold(BaseModel):
    """The processes that serve."""

    supervisor: Served | None
    hosts: list[HostLine]


class ConditionAsked(Taken):
    """What has to come true before a run begins: one of these, of runs that clients asked for."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    end: Annotated[Id | None, Field(description="This run has completed.")] = None
    milestone: Annotated[
        tuple[Id, Id] | None, Field(description="A run, and the name of a milestone that it has reached.")
    ] = None
    all_of: Annotated[list[ConditionAsked] | None, Field(description="All of these.")] = None
    any_of: Annotated[list[ConditionAsked] | None, Field(description="One of these, or more.")] = None
    n_of: Annotated[tuple[int, list[ConditionAsked]] | None, Field(description="So many of these, or more.")] = None

    def condition(self, id_max: int, place: str = "after") -> Condition:
        """As the ledger keeps it. Raises `BadRequest` that names the place."""
        said = [(name, value) for name, value in self if value is not None]
        if len(said) != 1:
            names = ", ".join(type(self).model_fields)
            raise BadRequest(place, f"say one of {names}; here are {', '.join(name for name, _ in said) or 'none'}")
        ((name, value),) = said
        place = f"{place}.{name}"
        if name == "end":
            return EndOf(check_id(place, value, id_max))
        if name == "milestone":
            return MilestoneOf(*(check_id(f"{place}.{at}", each, id_max) for at, each in enumerate(value)))
        count, parts, inside = (*value, f"{place}.1") if name == "n_of" else (1, value, place)
        made = [part.condition(id_max, f"{inside}.{at}") for at, part in enumerate(parts)]
        return of_parts(place, len(made) if name == "all_of" else count, made, f"{place}.0")


class StartAsked(Taken):
    """A run to begin. The same `run_id` with the same content is the same run."""

    type: Annotated[Id, Field(description="A class that the gateway serves: as module:Class, or as in its address.")]
    input: JsonValue = None
    run_id: Annotated[Id | None, Field(description="By default a new one.")] = None
    after: Annotated[
        ConditionAsked | None, Field(description="It begins when this has come true, and is given what was there.")
    ] = None
    losers: Annotated[
        Literal["leave", "cancel"],
        Field(description="What becomes of the runs in `after` of which nothing was needed when it begins."),
    ] = "leave"


class Started(BaseModel):
    """A run that is durable."""

    run_id: str
    status: Status


class AsksAsked(Taken):
    """Which questions."""

    to: Annotated[Id | None, Field(description="Only questions that have come to this group or person.")] = None
    asked_by: Annotated[
        Id | None, Field(description="Only questions of this run, or of this agent, as name@module:Class.")
    ] = None
    closed: Annotated[bool, Field(description="Closed ones too, of runs that are live or have ended lately.")] = False
    limit: Annotated[int, Field(ge=1, le=1000, description="Number of questions.")] = 100


class Escalation(BaseModel):
    """To whom a question goes on, and when."""

    to: str
    at_ms: int


class AnswerTold(BaseModel):
    """What somebody has answered. `args` are the arguments as they were changed."""

    who: str
    channel: str
    at_ms: int
    value: Json
    args: JsonObject | None


class AskTold(BaseModel):
    """A question to people: of a run, or about a call of a chat that waits. `kind` says whether a run asks, whether a call may be made, or
    what a call of a client's tool came to; `tool` and `call_id` are that call's. `schema` is the JSON schema of its answer, `to` are those
    who may answer by now (everybody, if it is empty), `digest` is that of all that is shown, and `refusal` says
    why whoever looks at it may not answer it; null if they may."""

    model_config = ConfigDict(protected_namespaces=())

    ask_id: str
    run_id: str | None
    agent: str
    agent_type: str
    kind: Literal["question", "approval", "client-tool"]
    tool: str | None
    call_id: str | None
    status: AskStatus
    question: str
    schema_: Annotated[JsonObject, Field(alias="schema")]
    args: JsonObject | None
    to: list[str]
    later: list[Escalation]
    people: int
    self_answer: bool
    began_by: str | None
    opened_at_ms: int
    expires_at_ms: int | None
    otherwise: Json
    note: str | None
    digest: str
    closed_at_ms: int | None
    answers: list[AnswerTold]
    refusal: str | None


class AsksTold(BaseModel):
    """Questions to people, those that wait for longest first."""

    asks: list[AskTold]


class AnswerGiven(Taken):
    """An answer to a question."""

    value: JsonValue
    args: Annotated[
        dict[str, JsonValue] | None, Field(description="Arguments in place of the proposed ones of these names.")
    ] = None
    digest: Annotated[Id | None, Field(description="That of the question as it was shown.")] = None
    who: Annotated[Id | None, Field(description="Who answers, where the gateway does not know that.")] = None
    channel: Literal["rest", "dashboard"] = "rest"
    answer_id: Annotated[Id | None, Field(description="The same id is the same answer, however often it is sent.")] = (
        None
    )


class CancelAsked(Taken):
    """Why."""

    reason: Annotated[str, StringConstraints(max_length=1000)] = BY_OPERATOR


class EventAsked(Taken):
    """An event for a run. The same `event_id` again is the same event."""

    event: Annotated[Id, Field(description="The name by which the run waits for it.")]
    value: JsonValue = None
    event_id: Annotated[Id | None, Field(description="By default a new one.")] = None


class Confirmed(Taken):
    """Nothing more to say."""


class Cleared(BaseModel):
    """How many runs were forgotten."""

    cleared: int


class Standing(BaseModel):
    """A run after a request."""

    run_id: str
    status: Annotated[str, Field(description="Its status; `pending` for a mail that is delivered again.")]


class AgentAsked(Taken):
    """What is asked of its tables."""

    sql: Annotated[
        str | None, StringConstraints(max_length=10_000), Field(description="One SELECT; at most 1,000 rows.")
    ] = None


class AgentTold(BaseModel):
    """What is known of an agent. What its storage tells is missing if it has none."""

    agent: str
    host: str | None
    pid: int | None = None
    node: str | None = None
    incarnation: int = 0
    run: str | None = None
    run_status: str | None = None
    is_stopping: bool = False
    wakes_at_ms: int | None = None
    losses: int = 0
    lost_by: str | None = None
    mail: dict[str, int] = {}
    live_runs: list[str] = []
    last_life: int | None = None
    state: JsonObject = {}
    tables: list[JsonObject] = []
    fibers: list[JsonObject] = []
    schedules: list[JsonObject] = []
    turns: list[JsonObject] = []
    rows: Annotated[list[JsonObject], Field(description="The answer to `sql`.")] = []


class WorkAsked(Taken):
    """Which work."""

    failed: Annotated[bool, Field(description="Only what has failed, or keeps failing.")] = False
    limit: Annotated[int, Field(ge=1, le=1000)] = 50
    storages: Annotated[int, Field(ge=1, le=10_000, description="Of how many agents: those that wrote last.")] = 100


class WorkTold(BaseModel):
    """Work of one kind, newest first."""

    rows: list[JsonObject]
    all: int
    storages: int
    unreadable: list[str]


class CallAsked(Taken):
    """Arguments."""

    args: list[JsonValue] = Field(default_factory=list)
    kwargs: dict[str, JsonValue] = Field(default_factory=dict)


class SteerAsked(Taken):
    """What is said to the turn under way: a text, or a message of the user, which is known by its id."""

    message: str | JsonObject


class Steered(BaseModel):
    """What became of it, as far as it is decided: the turn that has read it or reads it at its next step, or none, if it is a turn of its
    own; that turn has the id of the request."""

    request_id: str
    message_id: str
    steered: str | None
    accepted: bool


class Answered(BaseModel):
    """What the method returned."""

    value: Json


class CodeTold(BaseModel):
    """Which code stands where, by agent type."""

    types: list[JsonObject]


class UpgradeAsked(Taken):
    """Which agents go on with newer code at once, if they are at rest."""

    type: Id | None = None
