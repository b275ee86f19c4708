"""The caller's side of calls and of mail: what a client and an agent do alike to reach an agent.

A *call* is made at most once, and answered; a *tell* takes effect exactly once, and is not answered. The supervisor decides by which way a
message goes, and whether it may (`ledger.addressing`). A call from outside to another agent's child goes to the root of the family, and
each ancestor asks its own `on_before_sub_agent` before it hands the call on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from perdure.actors.code.naming import type_name
from perdure.actors.code.schema import Shape
from perdure.actors.code.signatures import bound, gives_bit_by_bit, shapes_of, unexposed
from perdure.actors.link.direct_calls import method_key, split_route
from perdure.actors.link.messages import Call, HostNeeds
from perdure.actors.link.questions import ShowAgent
from perdure.actors.link.supervisor_client import SupervisorClient
from perdure.actors.ports import Dice, Threads
from perdure.actors.telemetry.telemetry import carried, carried_text
from perdure.ledger import BadRequest, OutcomeUnknown, PerdureError, Standalone, Tell, agent_id, pack
from perdure.policies import Limits

THROUGH: Final = "\0through"

Home = Callable[[type], HostNeeds]


class Address(NamedTuple):
    """Whom a call is for: the class, by which it is typed, the agent's address, and what its root's class says (`ledger.addressing`)."""

    agent_class: type
    agent_id: str
    standalone: Standalone

    @classmethod
    def of(cls, agent_class: type, name: str, code_dir: Path | None = None) -> Address:
        return cls(agent_class, agent_id(type_name(agent_class, code_dir), name), standalone_of(agent_class))


class TellContent(NamedTuple):
    recipient: str
    method: str
    body: bytes
    home: HostNeeds
    standalone: str


class AgentCaller:
    """Makes the calls of one process.

    Args:
        home: what a class asks of its host.
        ready: what is awaited before that is asked of a class.
        sender: the agent that calls, or empty for a client. What it waits for ends with it when it is deleted.
    """

    def __init__(
        self,
        supervisor: SupervisorClient,
        dice: Dice,
        threads: Threads,
        limits: Limits,
        code_dir: Path | None,
        home: Home,
        *,
        ready: Callable[[type], Awaitable[None]] | None = None,
        sender: str = "",
    ) -> None:
        self.supervisor, self.dice, self.threads = supervisor, dice, threads
        self.limits, self.code_dir = limits, code_dir
        self._home, self._ready, self._sender = home, ready, sender

    async def call(self, to: Address, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Call an exposed method, at most once. Raises `OutcomeUnknown` if it is unknown whether it took effect."""
        function = getattr(to.agent_class, method, None)
        afar = getattr(function, "__perdure_afar__", None)
        if afar is not None:
            return await afar(CallerSide(self, to), *args, **kwargs)
        body, returned, repeatable = self.encoded(to.agent_class, method, args, kwargs)
        if self._ready is not None:
            await self._ready(to.agent_class)
        home = self._home(to.agent_class)
        send = partial(self.send, to.agent_id, method, body, home, to.standalone, repeatable=repeatable)
        if method_key(to.agent_class, method):
            reply = await self.supervisor.direct_calls.ask(
                self._sender, to.agent_id, method, body, carried_text(), send
            )
        else:
            reply, _ = split_route(await send())
        return returned.decode("return", reply)

    def followed(
        self, to: Address, method: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Callable[[], AsyncGenerator[object, None]] | None:
        """Begins what a method gives that is followed instead of called: that of a generator, and of a method that says how
        (`__perdure_followed__`). None for any other method. Raises `BadRequest` for arguments that a generator does not take."""
        function = getattr(to.agent_class, method, None)
        follow = getattr(function, "__perdure_followed__", None)
        if follow is not None:
            return partial(follow, CallerSide(self, to), *args, **kwargs)
        if function is None or not _is_generator(function):
            return None
        body, given, _ = self.encoded(to.agent_class, method, args, kwargs)
        return partial(given_by, self.call, to, method, body, given)

    # What `handle.method(…)` gives on this loop: an awaitable, or something to be iterated over.
    def reach(self, to: Address, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        begin = self.followed(to, method, args, kwargs)
        return self.call(to, method, args, kwargs) if begin is None else begin()

    async def send(
        self,
        agent: str,
        method: str,
        body: bytes,
        home: HostNeeds,
        standalone: Standalone = Standalone.ALWAYS,
        *,
        repeatable: bool,
    ) -> bytes:
        heard = self.supervisor.peer.heard
        call = Call(
            agent, method, body, home, repeatable, self._sender, heard, again=False, standalone=standalone, **carried()
        )
        return cast("bytes", await self.supervisor.ask(call))

    def encoded(
        self, agent_class: type, method: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[bytes, Shape, bool]:
        """The arguments of a call, checked; the shape of its answer; and whether it may be repeated."""
        function = getattr(agent_class, method, None)
        marked = getattr(function, "__perdure_exposed__", None)
        if function is None or marked is None:
            raise unexposed(agent_class, method)
        bytes_max = self.limits.input_bytes_max
        arguments = bound(
            function, args, kwargs, lambda shape, name, value: shape.kept(name, value, bytes_max), agent_class, method
        )
        return pack(arguments), shapes_of(function, agent_class, method)[1], marked["repeatable"]

    def letter(self, to: Address, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> TellContent:
        body, _, _ = self.encoded(to.agent_class, method, args, kwargs)
        if _is_generator(getattr(to.agent_class, method)):
            raise BadRequest(
                "method", f"{method} gives its values bit by bit, to whoever follows it; it cannot be told"
            )
        return TellContent(to.agent_id, method, body, self._home(to.agent_class), to.standalone)

    async def tell(self, mail_id: str, sender: str, letter: TellContent, *, is_new: bool) -> None:
        """Have the mail posted; durable on return. `is_new` says that it cannot have been posted before."""
        recipient, method, body, home, standalone = letter
        epoch = self.supervisor.peer.epoch if is_new else 0
        await self.supervisor.ask_when_free(Tell(mail_id, recipient, sender, method, body, home, epoch, standalone))


_is_generator: Final = cache(gives_bit_by_bit)


async def given_by(
    call: Callable[[Address, str, tuple[object, ...], dict[str, object]], Awaitable[object]],
    to: Address,
    method: str,
    body: bytes,
    given: Shape,
) -> AsyncGenerator[object, None]:
    # It goes on only when it is asked, and is closed when nothing more is wanted.
    stream_id: object = None
    is_over = True
    try:
        stream_id = await call(to, "_perdure_begin_stream", (method, body), {})
        is_over = False
        while not is_over:
            page = cast("Mapping[str, Any]", await call(to, "_perdure_next_of_stream", (stream_id,), {}))
            for value in page["values"]:
                yield given.decode("yield", value)
            is_over = page["is_over"]
    except OutcomeUnknown as problem:
        is_over = True
        raise OutcomeUnknown(problem.agent_id, method, problem.cause) from None  # that is what its author calls it
    except PerdureError:
        is_over = True
        raise
    finally:
        if not is_over:
            await call(to, "_perdure_end_stream", (stream_id,), {})


def standalone_of(agent_class: Any) -> Standalone:
    # As `Agent.stands_alone` says.
    if not callable(getattr(agent_class, "run", None)):
        return Standalone.ALWAYS
    return Standalone.ALSO if agent_class.stands_alone else Standalone.NEVER


# What a method with a part to do at the caller's side (`Agent` marks it by `__perdure_afar__`) is given to do it with.
class CallerSide:
    def __init__(self, calling: AgentCaller, to: Address) -> None:
        self._caller, self._to = calling, to
        self.threads = calling.threads

    def token(self) -> str:
        return self._caller.dice.token()

    async def call(self, method: str, *args: object, **kwargs: object) -> Any:
        return await self._caller.call(self._to, method, args, kwargs)

    @property
    def idle_s(self) -> float:
        return self._caller.limits.idle_ms / 1000

    async def is_awake(self) -> bool:
        # The question does not wake the agent.
        about = cast("dict[str, Any] | None", await self._caller.supervisor.ask(ShowAgent(self._to.agent_id)))
        return about is not None and about["host"] is not None
