"""Agents that raise whatever Python lets them raise, in each place where authors have code."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, Self

from perdure.actors import Agent, Detached, RunContext, exposed


class Panic(BaseException):
    """As pyo3's `PanicException`: no `Exception`."""


class Dumb(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise LookupError("no text")

    __repr__ = __str__
    __reduce__ = __str__  # type: ignore[assignment]


class Closed(Exception):
    """Hides what each exception has."""

    args: Any = property(lambda _: 1 / 0)  # type: ignore[assignment]
    __cause__: Any = property(lambda _: 1 / 0)  # type: ignore[assignment]
    __context__: Any = property(lambda _: 1 / 0)  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise LookupError

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Demanding(Exception):
    """Is made of what nobody else has."""

    def __new__(cls, *, code: int) -> Self:
        return super().__new__(cls, code)

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


def chain(length: int, *, is_loop: bool = False) -> Exception:
    """An error that was raised from another one, and that from another one."""
    first = problem = ValueError("the first")
    for number in range(length):
        later = ValueError(f"number {number}")
        later.__cause__, problem = problem, later
    if is_loop:
        first.__cause__ = problem
    return problem


def noted(problem: Exception, *notes: Any) -> Exception:
    """An error with notes."""
    problem.__notes__ = [*notes]
    return problem


def made_here() -> Exception:
    """Of a class that nobody can import."""
    kind: type[Exception] = type("Local", (Exception,), {})
    return kind("here")


KINDS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "panic": (lambda: Panic("index out of bounds"), "Panic: index out of bounds"),
    "interrupt": (lambda: KeyboardInterrupt("by hand"), "KeyboardInterrupt: by hand"),
    "exit": (lambda: SystemExit(3), "RuntimeError: the code called sys.exit(3)"),
    "close": (lambda: GeneratorExit("by hand"), "GeneratorExit: by hand"),
    "stray": (lambda: asyncio.CancelledError("stray"), ""),
    "panics": (lambda: BaseExceptionGroup("two", [Panic("p"), ValueError("v")]), "BaseExceptionGroup: two (2 sub-exceptions): "),
    "group": (lambda: ExceptionGroup("one", [ConnectionError("down")]), "ExceptionGroup: one (1 sub-exception): ConnectionError: down"),
    "surrogate": (lambda: ValueError("caf\udce9\0"), "ValueError: caf\\udce9\\x00"),
    "file": (lambda: FileNotFoundError(2, "none", "caf\udce9"), "FileNotFoundError: [Errno 2] none: 'caf\\udce9'"),
    "pair": (lambda: ValueError([{(0, 1): "x"}, object]), "ValueError: [{(0, 1): 'x'}, <class 'object'>]"),
    "number": (lambda: KeyError(10**30), f"KeyError: {10**30}"),
    "digits": (lambda: KeyError(10**5000), "KeyError: (KeyError, whose text cannot be had: ValueError)"),
    "dumb": (Dumb, "Dumb: (Dumb, whose text cannot be had: LookupError)"),
    "closed": (lambda: Closed("in itself"), "Closed: in itself"),
    "demanding": (lambda: Demanding(code=4), "Demanding: code 4"),
    "local": (made_here, "Local: here"),
    "chain": (lambda: chain(10_000), "ValueError: number 9999 (caused by ValueError: number 9998"),
    "loop": (lambda: chain(2, is_loop=True), "ValueError: number 1 (caused by ValueError: number 0"),
    "notes": (lambda: noted(ValueError("noted"), "caf\udce9", Dumb(), 7), "ValueError: noted"),
    "huge": (lambda: ValueError("x" * 10_000_000), "ValueError: xxx"),
    "iteration": (lambda: StopIteration("over"), ""),
    "time": (lambda: TimeoutError("the database"), "TimeoutError: the database"),
}  # fmt: skip
"""How each is made, and how its words begin. Empty where Python itself makes another error of it in async code."""


class Raiser(Agent):
    """Raises what it is asked for. `entered` counts where."""

    entered: ClassVar[Counter[tuple[str, str]]] = Counter()
    stands_alone = True

    def _raise(self, where: str, kind: str) -> None:
        self.entered[where, kind] += 1
        raise KINDS[kind][0]()  # noqa: RSE102 - it makes one

    async def run(self, input: str, run: RunContext) -> str:
        where, _, kind = input.partition("/")
        if where == "task":
            await asyncio.create_task(self._in_a_task(kind))
        if where == "itself":
            await self._cancel_itself("run")
        if where == "run":
            self._raise("run", kind)
        return kind

    def get_agent_tool_summary(self, output: str, run: RunContext) -> str:
        """Raises nothing by itself."""
        return "caf\udce9"

    async def _in_a_task(self, kind: str) -> None:
        self._raise("task", kind)

    async def _cancel_itself(self, where: str) -> None:
        self.entered[where, "itself"] += 1
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(10)

    @exposed(repeatable=True)
    async def asked(self, kind: str) -> None:
        """Raise it in a call."""
        if kind == "itself":
            await self._cancel_itself("asked")
        self._raise("asked", kind)

    @exposed(repeatable=True)
    def asked_on_a_thread(self, kind: str) -> None:
        """The same in sync code."""
        self._raise("asked_on_a_thread", kind)

    @exposed
    def detach(self, kind: str, handler: str) -> None:
        """Have it raised in a handler."""
        with self.transaction():
            self.run_agent_tool(
                Raiser, f"done/{kind}", run_id=f"{handler}-{kind}", detached=Detached(on_finish=handler)
            )

    async def handled(self, run: Any, result: Any) -> None:
        """A handler."""
        if result.output == "itself":
            await self._cancel_itself("handled")
        self._raise("handled", result.output)

    def handled_on_a_thread(self, run: Any, result: Any) -> None:
        """The same in sync code."""
        self._raise("handled_on_a_thread", result.output)

    @exposed
    def plan(self, kind: str) -> None:
        """Have it raised in a schedule, the queue and a fiber."""
        self.schedule(1, "called", kind)
        self.queue("taken", kind)
        self.start_fiber("job", self.job, input=kind)

    @exposed
    def planned(self) -> list[str]:
        """With what they have failed."""
        found: list[Any] = [*self.schedules.list(), *self.queued.list(), *self.list_fibers()]
        return [str(each.error) for each in found]

    def called(self, kind: str, _occurrence: Any) -> None:
        """The callback of a schedule."""
        self._raise("called", kind)

    async def taken(self, kind: str, _occurrence: Any) -> None:
        """The callback of an item."""
        self._raise("taken", kind)

    async def job(self, _context: Any, kind: str) -> None:
        """The fiber."""
        self._raise("job", kind)


class Unready(Agent):
    """Raises what it is called after, before it is up."""

    async def on_start(self) -> None:
        raise KINDS[self.name][0]()  # noqa: RSE102 - as above

    @exposed(repeatable=True)
    def ask(self) -> None:
        """Never reached."""
