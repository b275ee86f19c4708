"""What answers a command about a directory: what serves it, or its ledger itself, opened by this process without Ray.

Without a supervisor decisions are made by the same function as a supervisor's, and appended to the same store. The next supervisor performs
their effects.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Self

from perdure import BadRequest, Limits, NoLongerServed, SupervisorUnreachable, actors
from perdure.actors import ray_of
from perdure.ledger import (
    AGENTS,
    LEDGER,
    AnswerAsk,
    Cancel,
    Clear,
    Deed,
    Forget,
    Pause,
    Retry,
    Row,
    Send,
    Steer,
    Stimulus,
    Store,
    Tell,
    apply_fact,
    bucket_of,
    decide,
    is_call_ask,
    pack,
    restore,
    run_from,
    steer,
    unpack_opened,
)
from perdure.ledger.maintenance.looking import BucketSource, DirectorySource, StorageSource
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.integrity import is_begun
from perdure.policies import Answerer

if TYPE_CHECKING:
    from perdure import Runtime  # which brings Ray with it; a cold directory needs none


@contextmanager
def served(data: Path) -> Iterator[Runtime | None]:
    """What serves the directory; None if nothing does. No Ray and no supervisor is started."""
    with ExitStack() as stack:
        runtime: Runtime | None = None
        if ray_of(data) is not None:
            with suppress(SupervisorUnreachable, NoLongerServed):  # its Ray answers, and its supervisor does not
                runtime = stack.enter_context(actors.Runtime(data, may_start=False))
        yield runtime


@contextmanager
def opened(data: Path) -> Iterator[ColdLedger | Runtime]:
    """What serves the directory, or if nothing does, its ledger itself, with a line that says so."""
    with served(data) as runtime:
        if runtime is not None:
            yield runtime
            return
    with ColdLedger(data) as ledger:
        words = f"No supervisor serves {data}. Its ledger answers, and nothing is started."
        if url := bucket_of(data):
            known = f"No supervisor that is known on this machine serves {url}."
            words = f"{known} Its ledger answers; what may be at work elsewhere is shown as cut off."
        print(words, file=sys.stderr)
        yield ledger


FAMILY_MAX: Final = 100_000


class ColdLedger:
    """Answers like a supervisor, from the files. Raises a `LedgerError` if they cannot be opened.

    Attributes:
        storages: of the agents.
    """

    def __init__(self, data: Path) -> None:
        with ExitStack() as undo:
            url = bucket_of(data)
            self._store, self.storages = self._of_bucket(url, undo) if url else self._of_directory(data)
            undo.callback(self._store.close)
            boot = self._store.boot()
            self._undo = undo.pop_all()
        self._view = restore(boot)
        limits, below = Limits.recorded(self._view.limits), self.storages.below
        self._books = actors.Books(self._view, self._store, limits, boot.findings, self._now_ms, below)

    def _of_bucket(self, url: str, undo: ExitStack) -> tuple[Store, StorageSource]:
        # In a cache of its own, because a supervisor may have the other one.
        cache = undo.enter_context(TemporaryDirectory(prefix="perdure-"))
        store = actors.bucket_store(Path(cache) / LEDGER, url, looks=True)
        return store, BucketSource(store)

    def _of_directory(self, data: Path) -> tuple[Store, StorageSource]:
        path = data / LEDGER
        actors.check_directory(data)
        if not is_begun(path):
            raise BadRequest("data", f"there is no ledger in {data}: nothing has run there; see that the path is right")
        return DuckDBStore(path), DirectorySource(data / AGENTS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def ask(self, name: str, *args: object) -> Any:
        question = actors.question_of(name, *args)
        self._recall(question)
        if isinstance(question, Steer):
            return self._steer(question)
        if isinstance(question, AnswerAsk | Cancel | Clear | Forget | Pause | Retry | Send | Tell):
            return self._store.append(self._decided(question), [])
        if not callable(question):
            raise BadRequest("question", f"only a supervisor answers {name!r}, and none serves this directory")
        answer = question(self._books)
        return unpack_opened(pack(answer.read() if isinstance(answer, actors.Later) else answer))

    def answer(self, ask_id: str, value: object, *, who: str | None, channel: str, **more: Any) -> dict[str, Any]:
        """Answer a question to people, as `Runtime.answer` does. Raises `BadRequest` for one about a call, which only its chat can take."""
        if is_call_ask(ask_id):
            words = f"nothing serves this directory, and the chat that asks {ask_id} has to take the answer itself"
            raise BadRequest("ask_id", f"{words}; start what serves it, and answer then")
        by = Answerer(actors.user_name() if who is None else who, is_operator=True)
        given = actors.Answering(ask_id, value, by, channel, token_hex(8), **more)
        self.ask("answer", *given.said(self._books.limits))
        told: dict[str, Any] = self.ask(*actors.about_ask(ask_id))
        return told

    def _recall(self, question: Any) -> None:
        # Runs may be in the snapshot alone; so may what agents that go, and their children, had asked for.
        unknown = [key for key in actors.runs_named(question) if key not in self._view.runs]
        for record in self._store.records("runs", unknown):
            if record.body:
                self._view.recall(run_from(record))
        agents = actors.deleted_with(self._view, question)
        while agents:
            found = actors.requested_by(self._store, agents, FAMILY_MAX)
            agents = [self._view.recall(run_from(record)).child for record in found]

    def _decided(self, stimulus: Stimulus) -> list[Row]:
        at_ms = self._now_ms()
        return apply_fact(self._view, decide(self._view, stimulus, at_ms, self._books.limits), at_ms)

    def _steer(self, asked: Steer) -> dict[str, Any]:
        # A group is one commit, as a supervisor makes it.
        rows: list[Row] = []

        def decided(deed: Deed) -> list[str]:
            new = self._decided(deed)
            rows.extend(new)
            return [row.kind for row in new]

        told = steer(self._view, asked, decided)._asdict()
        self._store.append(rows, [])
        return told

    def _now_ms(self) -> int:
        return max(time.time_ns() // 1_000_000, self._view.at_ms)
