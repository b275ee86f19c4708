"""Which agents have an address, and under which name.

    /agents/{class}/{name}[/sub/{class}/{name} …]

A class is written in kebab case, by the rule of the npm client of Cloudflare's agents (client protocols A.1): an all upper case name is
lower-cased; else each capital begins a word. Underscores become hyphens. The reverse is ambiguous, so names are looked up in a table, and
two classes with one name are refused when the table is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from perdure.actors.agent.agent import Agent
from perdure.actors.chat.chat_agent import ChatAgent
from perdure.actors.code.naming import is_bygone
from perdure.actors.gateway.refusals import NoSuchAgent
from perdure.actors.life.class_options import check_class
from perdure.ledger import BadRequest

RESERVED: Final = "sub"


class Step(NamedTuple):
    agent_class: type[Agent]
    name: str


def kebab(name: str) -> str:
    if name == name.upper():
        return name.lower().replace("_", "-")
    spread = re.sub(r"[A-Z]", lambda capital: f"-{capital[0].lower()}", name)
    return spread.removeprefix("-").replace("_", "-").removesuffix("-")


class Registry:
    """The classes that have an address. Raises `BadRequest` for two of one name, and for a class that is no agent's.

    Sub-agents and children of these need no entry: their classes are found among the loaded ones, and their parents guard them.
    """

    def __init__(self, roots: Iterable[type[Agent]]) -> None:
        self.roots: dict[str, type[Agent]] = {}
        for each in roots:
            if not (isinstance(each, type) and issubclass(each, Agent)):
                raise BadRequest("agents", f"{each!r} is no class of agents")
            check_class(each)
            name = kebab(each.__name__)
            if name == RESERVED:
                raise BadRequest("agents", f"{each.__name__} would be addressed as {RESERVED!r}, which separates steps")
            if self.roots.setdefault(name, each) is not each:
                raise BadRequest("agents", f"{each!r} and {self.roots[name]!r} would both be addressed as {name!r}")

    def chat_roots(self) -> dict[str, type[ChatAgent[Any]]]:
        return {name: each for name, each in self.roots.items() if issubclass(each, ChatAgent)}

    def path(self, segments: Sequence[str]) -> tuple[list[Step], list[str]]:
        """The steps of an address, `class name [sub class name …]`, and the segments that follow. Raises `NoSuchAgent`."""
        if len(segments) < 2:  # noqa: PLR2004 - a class and a name
            raise NoSuchAgent(f"{'/'.join(segments)!r:.80} is no address; {self._form}")
        root = self.roots.get(segments[0])
        if root is None:
            raise NoSuchAgent(f"no class of agents is addressed as {segments[0]!r:.80} here; {self._form}")
        steps = [Step(root, _name(segments[1]))]
        rest = list(segments[2:])
        while len(rest) >= 3 and rest[0] == RESERVED:  # noqa: PLR2004 - sub, a class and a name
            steps.append(Step(self._child(rest[1]), _name(rest[2])))
            rest = rest[3:]
        if rest and rest[0] == RESERVED:
            raise NoSuchAgent("a sub-agent is addressed as …/sub/CLASS/NAME")
        return steps, rest

    @property
    def _form(self) -> str:
        return f"an address is CLASS/NAME, as in {next(iter(self.roots), 'counter')}/one"

    def _child(self, name: str) -> type[Agent]:
        found = {
            each
            for each in (*self.roots.values(), *_loaded(Agent))
            if kebab(each.__name__) == name and not is_bygone(each)
        }
        if name in self.roots:
            return self.roots[name]
        if len(found) != 1:
            raise NoSuchAgent(f"{'no' if not found else 'more than one'} class of agents is addressed as {name!r}")
        return found.pop()


def _loaded(base: type[Agent]) -> Iterator[type[Agent]]:
    for each in base.__subclasses__():
        yield each
        yield from _loaded(each)


def _name(segment: str) -> str:
    if segment in {"", ".", ".."} or "\0" in segment:
        raise NoSuchAgent(f"{segment!r} is no name of an agent")
    return segment
