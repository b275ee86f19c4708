"""Types as authors write them, and the agents that hand values of them on."""

from __future__ import annotations

import collections
import dataclasses
import enum
import uuid
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Json,
    PrivateAttr,
    RootModel,
    SecretStr,
    computed_field,
    field_serializer,
    field_validator,
)
from typing_extensions import TypedDict

from perdure.actors import Agent, Detached, RunContext, RunInfo, RunResult, exposed
from perdure.ledger import pack_value

T = TypeVar("T")


class Order(BaseModel):
    order_id: int = Field(alias="orderId")


class TwoNames(BaseModel):
    model_config = ConfigDict(extra="forbid")

    a: int
    b: str = Field("x", validation_alias="bee", serialization_alias="wasp")

    @computed_field
    def twice(self) -> int:
        return 2 * self.a


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    when: datetime
    who: uuid.UUID
    where: tuple[int, int]
    much: Decimal


class Text(BaseModel):
    parsed: Json[dict[str, int]]


class Share(BaseModel):
    percent: float

    @field_validator("percent")
    @classmethod
    def as_fraction(cls, value: float) -> float:
        return value / 100


class Hiding(BaseModel):
    shown: int
    hidden: str = Field(exclude=True)


class Money(BaseModel):
    amount: Decimal

    @field_serializer("amount")
    def in_words(self, _value: Decimal) -> str:
        return "a lot"


class Noting(BaseModel):
    n: int
    _notes: list[str] = PrivateAttr(default_factory=list)

    def note(self, words: str) -> None:
        self._notes.append(words)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    a: int = 1


class Numbers(RootModel[list[int]]):
    pass


class Page(BaseModel, Generic[T]):
    items: list[T]


class Tree(BaseModel):
    n: int
    below: list[Tree] = []


class Box(BaseModel):
    v: Any


class Animal(BaseModel):
    name: str


class Dog(Animal):
    breed: str


class Login(BaseModel):
    password: SecretStr


class Suit(enum.Enum):
    HEARTS = (1, "red")
    SPADES = None


class Level(enum.IntEnum):
    LOW = 1


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Spot(NamedTuple):
    x: int
    y: str


@dataclasses.dataclass
class Grown:
    a: int
    by: dataclasses.InitVar[int]
    total: int = 0

    def __post_init__(self, by: int) -> None:
        self.total += self.a + by
        self.note = "grown"


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int


class Row(TypedDict):
    day: date
    at: Point


NOON = datetime(2026, 3, 29, 12, 0, tzinfo=timezone(timedelta(hours=2)))
COUNTED = collections.defaultdict(int, a=1)


def noting() -> Noting:
    """A model with something in a private attribute."""
    made = Noting(n=1)
    made.note("one")
    return made


class Given(Agent):
    """Hands a value of any type through everything that keeps or sends one, and says where it came out otherwise."""

    async def run(self, input: Any, run: RunContext) -> Any:
        self.state["kept"] = input
        stepped = await run.step("look", lambda: input)
        run.stash(input)
        run.emit(input)
        await run.report_progress(milestone="seen", data={"value": input})
        came = {"state": self.state["kept"], "step": stepped, "stash": run.stashed}
        odd = [name for name, each in came.items() if encoded(each) != encoded(input)]
        if odd:
            raise AssertionError(f"{odd} came out otherwise")
        return input


class Hander(Agent):
    """Asks for a run of `Given`, and keeps what its handlers are told."""

    @exposed
    async def pass_on(self, value: Any, child: str = "child") -> Any:
        with self.transaction():
            asked = Detached(on_finish=self.ended, on_milestones=["seen"], on_milestone=self.reached)
            self.run_agent_tool(Given, value, run_id=child, detached=asked, display={"value": value})
        return value

    def ended(self, run: RunInfo, result: RunResult[Any]) -> None:
        assert result.ok, result.error
        self.state["ended"] = result.output
        self.state["display"] = run.display

    def reached(self, run: RunInfo, milestone: Any) -> None:
        self.state["milestone"] = milestone.data

    @exposed
    def told(self) -> dict[str, Any]:
        return dict(self.state)


def encoded(value: object) -> bytes:
    """The value in the one form that is the same for equal values of the same types, NaN included."""
    return pack_value("value", value)
