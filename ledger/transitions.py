"""What a fact does to the status of a run: one table.

There are three kinds of cell. A status: the run moves there. `IGNORED`: a late or doubled echo, which `decide` drops without a fact.
`ILLEGAL`: only a bug of ours can bring this about. The fold raises `IllegalTransition` for both of the latter.

Decisions make the facts, and ask `permits` first when a fact answers a message from outside: messages come late, doubled and in any
order. The fold moves the status.

What each row survives:

- `starting` and `running` accept every end, because with lossy mail a result can overtake the news that its attempt began.
- `interrupted` is soft. A true end replaces it, a new request re-attaches to it, and the child's own reports still arrive. If its child is
  on no host any more, a run that is re-attached to is `starting` (`run.apply`): the table knows no hosts.
- The hard rows accept `RunCleared` alone. A second end, a late cancel, and the loss of the host after the end are echoes.
- `interrupted` becomes `running` when the child is heard to wait: it is alive, and its wait is what the parent waits for.
- `UndoBegan` wakes an interrupted run again, for it is not over before its steps are undone.
- `RunRetried` is the one way back: a person had a run that failed tried again, or its parent, tried again, asks for a run that was aborted
  because the parent had failed. Nothing that happens by itself changes a hard status.
- A run that is deleted is not in the view: whatever arrives for it finds no run and is dropped.
"""

from __future__ import annotations

from perdure.ledger.facts import (
    AskAnswered,
    AskEscalated,
    AskLapsed,
    AskOpened,
    AskWithdrawn,
    AttemptLost,
    AttemptStarted,
    ChunkEmitted,
    EventTaken,
    Fact,
    JoinMet,
    MilestoneReached,
    ProgressReported,
    RunAborted,
    RunCleared,
    RunErrored,
    RunInterrupted,
    RunParked,
    RunPaused,
    RunReattached,
    RunRequested,
    RunRetried,
    RunStarted,
    RunSucceeded,
    RunWaiting,
    TeardownBegan,
    UndoBegan,
    UndoPromised,
)
from perdure.ledger.status import Status
from perdure.policies import Cell

_S, _R, _I = Status.STARTING, Status.RUNNING, Status.INTERRUPTED
_C, _E, _A = Status.COMPLETED, Status.ERROR, Status.ABORTED
_ignored, _illegal = Cell.IGNORED, Cell.ILLEGAL

# The facts whose subject is a run, all of them.
#                     starting   running    interrupted  completed  error      aborted
TABLE: dict[type[Fact], tuple[Status | Cell, ...]] = {
    RunRequested:     (_illegal, _illegal,  _illegal,    _illegal,  _illegal,  _illegal),
    JoinMet:          (_S,       _illegal,  _illegal,    _illegal,  _illegal,  _illegal),
    AttemptStarted:   (_S,       _S,        _illegal,    _illegal,  _illegal,  _illegal),
    RunStarted:       (_R,       _ignored,  _ignored,    _ignored,  _ignored,  _ignored),
    ProgressReported: (_R,       _R,        _I,          _ignored,  _ignored,  _ignored),
    MilestoneReached: (_R,       _R,        _I,          _ignored,  _ignored,  _ignored),
    ChunkEmitted:     (_R,       _R,        _I,          _ignored,  _ignored,  _ignored),
    RunSucceeded:     (_C,       _C,        _C,          _ignored,  _ignored,  _ignored),
    RunErrored:        (_E,       _E,        _E,          _ignored,  _ignored,  _ignored),
    RunAborted:       (_A,       _A,        _A,          _ignored,  _ignored,  _ignored),
    RunInterrupted:   (_I,       _I,        _ignored,    _ignored,  _ignored,  _ignored),
    TeardownBegan:    (_S,       _R,        _ignored,    _ignored,  _ignored,  _ignored),
    AttemptLost:      (_S,       _S,        _I,          _ignored,  _ignored,  _ignored),
    RunReattached:    (_S,       _R,        _R,          _ignored,  _ignored,  _ignored),
    RunCleared:       (_illegal, _illegal,  _I,          _C,        _E,        _A),
    RunParked:        (_S,       _S,        _ignored,    _ignored,  _ignored,  _ignored),
    RunWaiting:       (_R,       _R,        _R,          _ignored,  _ignored,  _ignored),
    RunPaused:        (_S,       _R,        _I,          _ignored,  _ignored,  _ignored),
    EventTaken:       (_S,       _R,        _I,          _ignored,  _ignored,  _ignored),
    UndoPromised:     (_R,       _R,        _I,          _ignored,  _ignored,  _ignored),
    UndoBegan:        (_S,       _R,        _S,          _ignored,  _ignored,  _ignored),
    AskOpened:        (_R,       _R,        _I,          _ignored,  _ignored,  _ignored),
    AskAnswered:      (_S,       _R,        _I,          _ignored,  _ignored,  _ignored),
    AskLapsed:       (_S,       _R,        _I,          _ignored,  _ignored,  _ignored),
    AskEscalated:     (_S,       _R,        _I,          _ignored,  _ignored,  _ignored),
    AskWithdrawn:     (_S,       _R,        _I,          _ignored,  _ignored,  _ignored),
    RunRetried:       (_S,       _illegal,  _S,          _illegal,  _S,        _S),
}  # fmt: skip

_COLUMN = {status: index for index, status in enumerate((_S, _R, _I, _C, _E, _A))}


def cell(status: Status, fact: type[Fact]) -> Status | Cell:
    return TABLE[fact][_COLUMN[status]]


def permits(status: Status, fact: type[Fact]) -> bool:
    """Whether the fact would move or keep the run, rather than be an echo."""
    return isinstance(cell(status, fact), Status)
