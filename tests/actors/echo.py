"""The smallest supervisor and host that survive the simulated world: an echo service with a ledger. And simulations of less."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypedDict, Unpack

from perdure.actors.ports import Fleet, KillPoint, PoolSpec, Transport, World
from perdure.actors.sim_world.simulation import Simulation, Weather
from perdure.ledger import HostUnavailable, SupervisorUnreachable

CALM = Weather.calm()
MINUTE_MS = 60_000
QUESTIONS = [f"q{n}" for n in range(12)]
ANSWERS = [f"Q{n}" for n in range(12)]


class Message(TypedDict, total=False):
    """One of: a question to write down, a question whose answer is wanted, or a host's answers, which asks for more."""

    ask: str
    get: str
    did: dict[str, str]


class Book:
    """What is durable: every question, and its answer when there is one."""

    def __init__(self) -> None:
        self.rows: dict[str, str | None] = {}
        self.lives = 0

    def write(self, message: Message) -> None:
        if "ask" in message:
            self.rows.setdefault(message["ask"], None)
        self.rows.update(message.get("did", {}))


class EchoSupervisor:
    """Writes questions down, hands them to hosts, writes answers down; keeps two hosts alive; a failed commit ends it."""

    def __init__(self, world: World, fleet: Fleet, book: Book) -> None:
        self.world = world
        self.fleet = fleet
        self.book = book
        self.news = asyncio.Event()
        self.fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self) -> None:
        self.book.lives += 1
        hosts: list[str | None] = [*await self.fleet.survivors()]
        async with asyncio.TaskGroup() as group:
            for host_id in [*hosts, None, None][: max(2, len(hosts))]:
                group.create_task(self.keep(host_id))
            await self.fatal

    async def keep(self, host_id: str | None) -> None:
        while True:
            if host_id is not None:
                await self.fleet.death(host_id)
            host_id = f"host-{self.world.dice.token()}"
            try:
                await self.fleet.spawn(host_id, PoolSpec())
            except HostUnavailable:
                host_id = None
                await asyncio.sleep(0.1)

    async def exchange(self, frame: bytes) -> bytes:
        message: Message = json.loads(frame)
        await self.commit(message)
        rows = self.book.rows
        if "get" in message:
            await self.until(lambda: rows.get(message["get"]) is not None)
            return json.dumps(rows.get(message["get"])).encode()
        if "did" in message:
            await self.until(lambda: None in rows.values())
            return json.dumps([question for question, answer in rows.items() if answer is None][:3]).encode()
        return b"{}"

    async def commit(self, message: Message) -> None:
        if "ask" not in message and not message.get("did"):
            return
        self.world.faults.at(KillPoint.BEFORE_COMMIT)
        try:
            await self.world.threads.commit(partial(self.book.write, message))
        except OSError as error:
            if not self.fatal.done():
                self.fatal.set_exception(error)
            raise
        self.world.faults.at(KillPoint.AFTER_COMMIT)
        self.news.set()
        self.news = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                while not condition():
                    await self.news.wait()


class EchoHost:
    """Answers what it is asked."""

    def __init__(self, world: World, transport: Transport, host_id: str) -> None:
        self.world = world
        self.transport = transport
        self.host_id = host_id

    async def look(self, frame: bytes) -> bytes:
        return frame

    async def serve(self) -> str:
        did: dict[str, str] = {}
        while True:
            try:
                reply = await self.transport.exchange(json.dumps({"did": did}).encode())
            except SupervisorUnreachable:
                await asyncio.sleep(0.05)
                continue
            did = {}
            for question in json.loads(reply):
                self.world.faults.at(KillPoint.MID_RUN, question)
                did[question] = await self.world.threads.run(question.upper)


async def ask(transport: Transport, message: Message) -> str | None:
    """Exchange until something is known."""
    while True:
        try:
            answer: str | None = json.loads(await transport.exchange(json.dumps(message).encode()))
        except SupervisorUnreachable:
            await asyncio.sleep(0.02)
        else:
            return answer


async def questions(_world: World, transport: Transport) -> list[str]:
    """A client that wants all answers, all at once."""

    async def question(name: str) -> str:
        await ask(transport, {"ask": name})
        while True:
            if (answer := await ask(transport, {"get": name})) is not None:
                return answer

    return await asyncio.gather(*(question(name) for name in QUESTIONS))


class Options(TypedDict, total=False):
    kill_at: int | None
    kill_when: Callable[[str, KillPoint, str], bool] | None
    after_step: Callable[[], None] | None
    step_stride: int
    steps_max: int
    harmless: tuple[type[BaseException], ...]


def echo(seed: int, weather: Weather, book: Book | None = None, **options: Unpack[Options]) -> Simulation:
    make_supervisor = partial(EchoSupervisor, book=book or Book())
    return Simulation(seed, weather, make_supervisor, EchoHost, **options)


def supervised(
    serve: Callable[[World, Fleet], Awaitable[None]], weather: Weather = CALM, **options: Unpack[Options]
) -> Simulation:
    """A simulation whose supervisor is a single coroutine, and echoes."""

    class Supervisor:
        def __init__(self, world: World, fleet: Fleet) -> None:
            self.world, self.fleet = world, fleet

        async def serve(self) -> None:
            await serve(self.world, self.fleet)

        async def exchange(self, frame: bytes) -> bytes:
            return frame

    return Simulation(1, weather, Supervisor, EchoHost, **options)


def hosted(serve: Callable[[World, Transport], Awaitable[None]], **options: Unpack[Options]) -> Simulation:
    """A simulation with a supervisor that echoes and one host, "h", which is a single coroutine."""

    class Host:
        def __init__(self, world: World, transport: Transport, _host_id: str) -> None:
            self.world, self.transport = world, transport

        async def look(self, frame: bytes) -> bytes:
            return frame

        async def serve(self) -> str:
            await serve(self.world, self.transport)
            return "retired"

    class Supervisor:
        def __init__(self, _world: World, fleet: Fleet) -> None:
            self.fleet = fleet

        async def serve(self) -> None:
            if not await self.fleet.survivors():
                await self.fleet.spawn("h", PoolSpec())
            await asyncio.Event().wait()

        async def exchange(self, frame: bytes) -> bytes:
            return frame

    return Simulation(1, CALM, Supervisor, Host, **options)


def after(ms: float) -> Callable[[World, Transport], Awaitable[None]]:
    """A client that only lets time pass."""

    async def wait(_world: World, _transport: Transport) -> None:
        await asyncio.sleep(ms / 1000)

    return wait


async def beat(beats: list[float], *_ports: object) -> None:
    """Note the time again and again."""
    while True:
        beats.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.1)


async def forever(*_ports: object) -> None:
    await asyncio.Event().wait()


def whats(simulation: Simulation) -> str:
    return "\n".join(event.what for event in simulation.trace)


def storm(seed: int) -> Simulation:
    return echo(seed, Weather.drawn(random.Random(seed), 2.0))


def digest_of_storm(seed: int) -> str:
    with storm(seed) as simulation:
        assert simulation.run(questions, timeout_ms=60 * MINUTE_MS) == ANSWERS
    return simulation.digest()
