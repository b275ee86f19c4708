"""A program (all that was typed into a notebook or a prompt, or a script) as a row of top-level statements, and the part of it that a class
needs: as text, or as statements; and what is amiss.

A statement is needed if it binds, or may change, a name that a needed statement reads: an import, a definition, an assignment, and as well
a loop, a `with`, a call of one of the program's functions, or `PRICES["tea"] = 2`. A name that is read at once means what it was before; a
name in the body of a function means what it is at the end.

A statement that *starts* the program (it uses a `Runtime`, runs a loop, or asks for what only the program's own process has, such as its
arguments) is executed nowhere else. If a class needs what such a statement does, that is a `Loss`. So is a call that cannot be seen into,
with an object that the class needs.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum, StrEnum
from functools import cached_property, lru_cache
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Final, NamedTuple
from uuid import UUID

from perdure.actors.code.known_types import warn_first_time
from perdure.actors.code.name_effects import (
    ANYTHING,
    ARGUMENT,
    DOC,
    OF_THE_PROCESS,
    SELF,
    CallSite,
    Effects,
    effects_of,
    imported_modules,
    imports,
    is_definition,
    is_future,
    is_import,
    is_main_block,
    is_plain_import,
    is_text,
    surely_bound,
)
from perdure.ledger import BadRequest

_ONLY_HERE: Final = frozenset({"sys.argv", "sys.stdin"})


# ---------------------------------------------------------------- calls
# What calls do that cannot be seen into, judged by the names of their functions and by whom they were imported from.


STARTS: Final = frozenset(
    {
        *("input", "breakpoint", "getpass.getpass", "sys.stdin.read", "sys.stdin.readline"),
        *("asyncio.run", "anyio.run", "trio.run", "uvloop.run", "uvicorn.run", "ray.init"),
        *("unittest.main", "pytest.main", "typer.run", "fire.Fire", "runpy.run_path", "runpy.run_module"),
    }
)
_STARTING_METHODS: Final = frozenset({"run_until_complete", "run_forever", "parse_args", "parse_known_args"})
RUNTIMES: Final = frozenset({"Runtime", "AsyncRuntime", "Laboratory"})
_PROCESS_WIDE: Final = frozenset(
    {
        *("os.chdir", "os.putenv", "os.unsetenv", "os.umask", "site.addsitedir", "dotenv.load_dotenv", "load_dotenv"),
        *("locale.setlocale", "random.seed", "sys.setrecursionlimit"),
        *("warnings.filterwarnings", "warnings.simplefilter"),
    }
)

_COLLECTS: Final = re.compile(
    r"(append|appendleft|extend|extendleft|insert|add|update|setdefault|pop|popitem|popleft|remove|discard|clear|sort|"
    r"reverse|rotate|move_to_end|put|push|\w+_update|__setitem__|__setattr__|__delitem__)$"
)
_SETS: Final = re.compile(
    r"(set[a-z]*|register|unregister|add|configure|config|basicConfig|dictConfig|init|install|instrument|apply|patch|"
    r"seed|manual_seed|enable|disable|use|load_dotenv|filterwarnings|simplefilter|getcontext)(?:_|[A-Z]|$)"
)
_IN_PLACE: Final = re.compile(
    r"(shuffle|heapify|heappush|heappop|heapreplace|heappushpop|insort\w*|fill_?|iadd|setitem)$"
)
_LOOKS: Final = re.compile(
    r"_*(get|is|has|to|as|read|load|dump|print|pprint|show|display|log|debug|info|warning|warn|error|exception|critical|"
    r"plot|write|send|save|assert|validate|check|render|format|count|index|copy|deepcopy|items?|keys?|values?|find|"
    r"split|join|strip|exists|enter|encode|decode|lower|upper|search|match|starts|ends|resolve|open|iterdir|glob|sum|"
    r"mean|head|tail|replace|isoformat|strftime|total|with|union|difference|intersection|most_common)"
)
_BUILTINS_THAT_CHANGE: Final = frozenset({"setattr", "delattr", "next", "map", "filter", "eval"})
_UNCHANGING: Final = (
    *(str, bytes, int, float, complex, bool, type(None), range, frozenset, type),
    *(ModuleType, FunctionType, BuiltinFunctionType, PurePath, date, time, timedelta, tzinfo, Enum, Decimal, UUID),
    re.Pattern,
)


def can_change(value: object) -> bool:
    if isinstance(value, tuple):
        return any(map(can_change, value))
    return not isinstance(value, _UNCHANGING)


class Foreign:
    """The calls of a program that are not of its own functions.

    Args:
        imports: the names that it imports, with what they are: `{"rnd": "random", "sleep": "time.sleep"}`.
        modules: those that are modules.
    """

    def __init__(self, imports: Mapping[str, str], modules: frozenset[str]) -> None:
        self._imports, self._modules = imports, modules

    def whole(self, path: str) -> str:
        top, dot, rest = path.partition(".")
        return self._imports.get(top, top) + dot + rest

    def starts(self, call: CallSite) -> bool:
        path = self.whole(call.path)
        return path in STARTS or self.is_runtime(path) or call.name in _STARTING_METHODS

    def is_runtime(self, origin: str) -> bool:
        return origin.rpartition(".")[2] in RUNTIMES

    def is_process_wide(self, call: CallSite) -> bool:
        return self.whole(call.path) in _PROCESS_WIDE

    def collects(self, call: CallSite) -> bool:
        return _COLLECTS.match(call.name) is not None

    def changed(self, call: CallSite) -> set[str]:
        # The names whose objects it changes, as far as names tell.
        name = self.whole(call.path).rpartition(".")[2] or call.name
        in_place = set(call.given) if _IN_PLACE.match(name) else set[str]()
        if call.on:
            modules = call.on & self._modules
            set_there = modules if _SETS.match(name) else set[str]()
            others = call.on - modules if _COLLECTS.match(name) or _SETS.match(name) else set[str]()
            return in_place | set_there | others
        if call.name == "exec":
            return {ANYTHING}
        if call.name in _BUILTINS_THAT_CHANGE or (call.name in self._imports and _SETS.match(name)):
            return set(call.given)
        return in_place

    def doubtful(self, call: CallSite) -> set[str]:
        # The names whose objects it may change, for all that can be seen.
        path = self.whole(call.path)
        name, top = path.rpartition(".")[2] or call.name, path.partition(".")[0]
        if _LOOKS.match(name) or name[:1].isupper() or (not call.on and hasattr(builtins, call.name)):
            return set()
        if call.on & self._modules or (not call.on and call.name in self._imports):
            return set() if top in sys.stdlib_module_names else set(call.given)
        return set(call.on | call.given)


# ---------------------------------------------------------------- program


class How(StrEnum):
    STARTS = "gives or changes {name}, and only the program itself executes it"
    LATER = "changes {name} after the program has begun its work"
    UNSEEN = "may change {name}, and hosts leave it out: what else that call does cannot be seen"


# A statement that gives or changes what a class needs, and is not executed for it.
class Loss(NamedTuple):
    at: int
    name: str
    how: How
    is_sure: bool


@dataclass
class _Deeds:
    reads: set[str] = field(default_factory=set)
    binds: set[str] = field(default_factory=set)
    changes: set[str] = field(default_factory=set)
    doubts: dict[str, bool] = field(default_factory=dict)
    """Names that it may change; whether the call stands alone."""
    starts: bool = False
    is_process_wide: bool = False


class Program:
    """The statements of a script, or of all that was typed.

    Args:
        nodes: the statements.
        parts: for each, which text it is of. What one text has begun is over when the next is executed.
    """

    def __init__(self, nodes: Sequence[ast.stmt], parts: Sequence[int]) -> None:
        self.nodes, self._parts = nodes, parts
        self.effects = [effects_of(node) for node in nodes]
        if nodes and is_text(nodes[0]):
            self.effects[0] = replace(self.effects[0], binds=self.effects[0].binds | {DOC})
        self._bound = set[str]().union(*(each.binds for each in self.effects))
        self._foreign = Foreign(dict(imports(nodes)), frozenset(imported_modules(nodes)))
        self._runtimes = {name for name, origin in imports(nodes) if self._foreign.is_runtime(origin)} | RUNTIMES
        self._imported = {name for name, _ in imports(nodes)}
        self._bodies: dict[str, list[Effects]] = {}
        for each in self.effects:
            for name, body in each.bodies.items():
                self._bodies.setdefault(name, []).append(body)
        self._bases = {name: each.bases for each in self.effects for name in each.bodies if each.bases}
        self._near: dict[str, set[str]] = {}
        self._far: dict[str, set[str]] = {}
        self._inside: dict[str, set[str]] = {}  # what each name may hold
        self.deeds = self._in_order()

    # ------------------------------------------------------------------ what statements do

    def _in_order(self) -> list[_Deeds]:
        # What a starting statement binds makes those that read it starting ones.
        found: list[_Deeds] = []
        started = set[str]()
        for bodies in self._bodies.values():
            for body in bodies:
                self._join(body, far=not any(map(self._foreign.starts, body.calls)))
        for node, effects in zip(self.nodes, self.effects, strict=True):
            deeds = self._deeds_of(effects, started)
            deeds.starts |= is_main_block(node)
            started = started | deeds.binds if deeds.starts else started - deeds.binds
            self._join(effects, far=not deeds.starts)
            found.append(deeds)
        return found

    def _join(self, effects: Effects, *, far: bool) -> None:
        held = [effects.shares]
        if far:
            kept = {name: {*call.given} for call in effects.calls if self._foreign.collects(call) for name in call.on}
            held += [effects.derives, kept]
        _connect(self._near, effects.shares, self._holding)
        for each in held:
            _connect(self._far, each, self._holding)
            for name, others in each.items():
                # The argument of one function is not that of another: what calls have put into it is in no other one.
                if name != ARGUMENT or each is effects.shares:
                    self._inside.setdefault(name, set()).update(others & self._bound - {name})
        for inner in effects.bodies.values():
            self._join(inner, far=far)

    @cached_property
    def _holding(self) -> set[str]:
        giving = {
            name
            for name, bodies in self._bodies.items()
            for body in bodies
            if any(name in each.derives for each in (body, *body.bodies.values()))
        }
        return self._bound - self._imported - (self._bodies.keys() - giving)

    def _deeds_of(self, effects: Effects, started: set[str]) -> _Deeds:
        deeds = _Deeds()
        executed = self._executed(effects, started)
        for each in executed:
            deeds.reads |= each.reads
            deeds.binds |= each.binds
            deeds.starts |= each.awaits or bool(started & each.reads) or any(map(self._foreign.starts, each.calls))
            deeds.starts |= any(self._foreign.whole(name) in _ONLY_HERE for name in each.reads)
            deeds.is_process_wide |= any(map(self._foreign.is_process_wide, each.calls))
        of_the_runtime = started | self._runtimes | (deeds.binds | {ARGUMENT, SELF} if deeds.starts else set())
        for each in executed:
            deeds.changes |= each.changes
            for call in each.calls:
                self._note(call, deeds, of_the_runtime)
        deeds.changes -= {ARGUMENT, SELF}
        set_outside = self._imported & set[str]().union(*(each.changes for each in executed))
        deeds.is_process_wide |= bool(deeds.changes & (OF_THE_PROCESS | set_outside))
        return deeds

    def _note(self, call: CallSite, deeds: _Deeds, of_the_runtime: set[str]) -> None:
        # What a runtime does, it does elsewhere.
        known = list(self._called(call))
        if known:
            mine = call.function & self._bound  # what it keeps: in a closure, or in a default
            deeds.changes |= {*call.given} | mine if self._alters(ARGUMENT, known) else mine & self._holding
            deeds.changes |= {*call.on} if self._alters(SELF, known) else set()
            deeds.changes |= self._foreign.changed(call) if call.on else set()
            return
        deeds.changes |= call.function & self._holding - of_the_runtime
        changed = self._foreign.changed(call)
        deeds.changes |= changed
        if changed or (call.on or {call.name}) & of_the_runtime:
            return
        for name in self._foreign.doubtful(call) & self._bound - deeds.changes - self._imported - self._bodies.keys():
            deeds.doubts[name] = deeds.doubts.get(name, False) or call.alone

    def _executed(self, effects: Effects, started: set[str]) -> list[Effects]:
        found = [effects]
        for each in found:  # grows while it is walked
            afar = self._of_runtimes(each)
            bodies = [body for call in each.calls if not call.on & afar for body in self._called(call, effects)]
            given = set[str]().union(*(call.given for call in each.calls)) - started
            bodies += [body for name in given for body in self._bodies.get(name, ()) if not body.bodies]
            bodies += [body for base in each.bases for body in self._made_by(base)]
            once = {id(body): body for body in bodies}.values()
            found += [body for body in once if all(body is not other for other in found)]
        return found

    # The names that hold a runtime, and not what is made with one here: what is called on it, or on a handle that it gives, is executed
    # elsewhere.
    def _of_runtimes(self, effects: Effects) -> set[str]:
        held = (*effects.shares.items(), *effects.derives.items())
        return {name for name, others in held if others & self._runtimes and not others & self._bodies.keys()}

    def _called(self, call: CallSite, within: Effects | None = None) -> Iterator[Effects]:
        if within is not None and call.name in within.bodies and call.name not in self._bound:
            yield within.bodies[call.name]  # a lambda
        held = _reached(self._inside, call.on | call.function) & self._bodies.keys()
        for name in _reached(self._bases, held):  # the methods of a class may be those of its bases
            for body in self._bodies.get(name, ()):
                yield body
                yield from body.bodies.values()

    def _made_by(self, base: str) -> Iterator[Effects]:
        for body in self._bodies.get(base, ()):
            yield from (method for name, method in body.bodies.items() if name == "__init_subclass__")
        for effects in self.effects:
            if base in effects.binds and base in effects.bodies:
                yield from (body for each in effects.bases - {base} for body in self._made_by(each))

    def _alters(self, what: str, bodies: Iterable[Effects]) -> bool:
        seen = list[Effects]()
        waiting = deque(bodies)
        while waiting:
            body = waiting.popleft()
            if any(body is other for other in seen):
                continue
            seen.append(body)
            inner = [call for call in body.calls if what in call.given | call.on]
            if what in body.changes or any(what in self._foreign.changed(call) for call in inner):
                return True
            waiting.extend(each for call in inner for each in self._called(call))
        return False

    # ------------------------------------------------------------------ what a class needs

    def needed(self, names: Iterable[str], *, is_script: bool) -> Needs:
        needs = Needs(self, names)
        always = [at for at, node in enumerate(self.nodes) if self._is_always_needed(at, node, is_script=is_script)]
        if needs.kept:
            for at in always:
                needs.keep(at)
            needs.settle()
        return needs

    def _is_always_needed(self, at: int, node: ast.stmt, *, is_script: bool) -> bool:
        deeds = self.deeds[at]
        everything = ANYTHING in deeds.binds or ANYTHING in deeds.changes
        return is_future(node) or (not deeds.starts and (everything or (is_script and deeds.is_process_wide)))

    def imports_again(self, at: int, name: str) -> bool:
        """Whether this statement gives a name only by the import by which those give it that do not start the program."""
        node = self.nodes[at]
        again = [each for each, deeds in zip(self.nodes, self.deeds, strict=True) if not deeds.starts]
        here, others = ({origin for bound, origin in imports(nodes) if bound == name} for nodes in ([node], again))
        stored = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        return len(here) == 1 and here == others and name not in stored

    def touches(self, at: int, name: str) -> bool:
        deeds = self.deeds[at]
        graph = self._near if deeds.starts else self._far
        if not deeds.starts and name not in self._bound and ANYTHING in deeds.changes:
            return not hasattr(builtins, name)
        return name in deeds.binds or (bool(deeds.changes) and name in _reached(graph, deeds.changes))

    def begins_between(self, first: int, last: int) -> bool:
        # Within the text that is executed now: what was typed before it has been executed as a whole.
        if self._parts[last] != self._parts[-1]:
            return False
        return any(self.deeds[at].starts and self._parts[at] == self._parts[last] for at in range(first + 1, last))


class Needs:
    """What is needed for some names: statements that are kept, and losses."""

    def __init__(self, program: Program, names: Iterable[str]) -> None:
        self.kept: set[int] = set()
        self.losses: list[Loss] = []
        self._program, self._end = program, len(program.nodes)
        self._asked: set[tuple[str, int]] = set()
        self._waiting: list[tuple[str, int]] = [(name, self._end) for name in names]
        places = [
            at for at, effects in enumerate(program.effects) if effects.binds & {name for name, _ in self._waiting}
        ]
        self._begun = max(places, default=self._end)
        self.settle()

    def settle(self) -> None:
        while self._waiting:
            name, before = self._waiting.pop()
            if (name, before) not in self._asked:
                self._asked.add((name, before))
                self._look(name, before)

    def keep(self, at: int) -> None:
        # Ask for what it needs, too.
        if at in self.kept:
            return
        self.kept.add(at)
        effects, deeds = self._program.effects[at], self._program.deeds[at]
        anew = surely_bound(self._program.nodes[at]) - deeds.reads  # what these names were before does not count
        self._waiting += [(name, at) for name in (deeds.reads | deeds.binds | deeds.changes) - anew]
        self._waiting += [(name, self._end) for name in effects.later()]
        for name in effects.all_hints():
            self._hinted(name)

    def _look(self, name: str, before: int) -> None:
        # Go back to where the name was last bound whatever happens, and keep all that touches it on the way.
        is_found = False
        touching: list[int] = []
        for at in range(before - 1, -1, -1):
            if not self._program.touches(at, name):
                alone = self._program.deeds[at].doubts.get(name)
                if alone is not None:
                    self.losses.append(Loss(at, name, How.UNSEEN, alone))
                continue
            is_found = True
            if self._program.deeds[at].starts:
                if not self._program.imports_again(at, name):
                    self.losses.append(Loss(at, name, How.STARTS, name in self._program.deeds[at].binds))
                continue
            touching.append(at)
            if name in surely_bound(self._program.nodes[at]) and name not in self._program.deeds[at].reads:
                break
        for at in touching:
            self._keep_touching(name, at, before)
        own, *later = [effects.binds for effects in self._program.effects[before:]] or [set[str]()]
        is_own = name in own  # as that of a loop
        if not (is_found or is_own) and any(name in binds for binds in later):
            self._waiting.append((name, self._end))

    def _keep_touching(self, name: str, at: int, before: int) -> None:
        self.keep(at)
        was_there = any(self._program.touches(earlier, name) for earlier in range(at))
        if before == self._end and was_there and self._program.begins_between(self._begun, at):
            self.losses.append(Loss(at, name, How.LATER, name in self._program.deeds[at].binds))

    def _hinted(self, name: str) -> None:
        # A text that may be a name keeps a definition, and asks for nothing else.
        for at in range(self._end - 1, -1, -1):
            if name in self._program.effects[at].binds and not self._program.deeds[at].starts:
                if is_definition(self._program.nodes[at]):
                    self.keep(at)
                return

    def losses_of(self, values: Mapping[str, object]) -> tuple[list[Loss], list[Loss]]:
        """Those by which a name surely has another value, and those by which it may. `values` are those that the program has now: what
        cannot change was not changed."""
        real = [
            loss for loss in dict.fromkeys(self.losses) if loss.at not in self.kept and _can_differ(loss, values)
        ] + [loss for loss in dict.fromkeys(self.losses) if loss.at in self.kept and loss.how is How.LATER]
        sure = [loss for loss in real if loss.how is not How.UNSEEN or loss.is_sure]
        return sure, [loss for loss in real if loss not in sure]


def _can_differ(loss: Loss, values: Mapping[str, object]) -> bool:
    binds = loss.how is not How.UNSEEN and loss.is_sure
    known = values if loss.name in values else vars(builtins)
    return binds or loss.name not in known or can_change(known[loss.name])


# ---------------------------------------------------------------- graphs


def _connect(graph: dict[str, set[str]], held: Mapping[str, set[str]], known: set[str]) -> None:
    for name, others in held.items():
        for other in (others & known) if name in known else ():
            graph.setdefault(name, set()).add(other)
            graph.setdefault(other, set()).add(name)


def _reached(graph: Mapping[str, set[str]], names: Iterable[str]) -> set[str]:
    found, waiting = set[str](), set(names)
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= graph.get(name, set()) - found
    return found


# ---------------------------------------------------------------- the text


_SHOWN_MAX: Final = 80  # characters of a statement in a warning
_ADVICE: Final = "put the class, and all that it needs, into a module"
_ADVICE_FOR_SCRIPTS: Final = (
    'put what starts the program under `if __name__ == "__main__":`, and hosts execute everything else as it is'
)


class _Piece(NamedTuple):
    node: ast.stmt
    text: str
    part: int


class SourceText:
    """All that was typed, or the text of a script.

    Args:
        texts: what was typed, oldest first; of a script, its text.
        is_script: whether the text is executed from its file in hosts.
    """

    def __init__(self, texts: Sequence[str | bytes], *, is_script: bool = False) -> None:
        self._is_script = is_script
        split = _pieces if not is_script else _whole
        self._pieces = [_Piece(node, piece, part) for part, text in enumerate(texts) for node, piece in split(text)]
        self._program = Program([piece.node for piece in self._pieces], [piece.part for piece in self._pieces])

    def defines(self, name: str) -> bool:
        return any(name in each.binds or ANYTHING in each.binds | each.changes for each in self._program.deeds)

    def starts(self) -> bool:
        # What stands under `if __name__ == "__main__":` does not count: hosts do not execute it.
        deeds_and_nodes = zip(self._program.deeds, self._program.nodes, strict=True)
        return any(deeds.starts and not is_main_block(node) for deeds, node in deeds_and_nodes)

    def has_main_block(self) -> bool:
        return any(map(is_main_block, self._program.nodes))

    def excerpt(self, name: str) -> str:
        """The statements that one class needs, as text; empty if it is not defined there.

        Imports come first and sorted, those from `__future__` before all others, so that repeated or additional imports do not change the
        text. An import of a name that also has another meaning stays in its place, and so do all where the process is set up first.
        """
        needs = self._program.needed([name], is_script=False)
        kept = [self._pieces[at] for at in sorted(needs.kept)]
        meanings: dict[str, set[str]] = {}
        for at in needs.kept:
            piece = self._pieces[at]
            for bound in self._program.effects[at].binds:
                meanings.setdefault(bound, set()).add("import" if is_plain_import(piece.node) else piece.text)
        is_set_up = any(self._program.deeds[at].is_process_wide for at in needs.kept)
        first = {
            piece.text
            for piece in kept
            if is_future(piece.node) or (not is_set_up and _may_come_first(piece, meanings))
        }
        ordered = sorted(first, key=lambda text: (not text.startswith("from __future__ "), text))
        return "".join(f"{text}\n" for text in [*ordered, *(piece.text for piece in kept if piece.text not in first)])

    def definitions(self, names: Iterable[str]) -> list[int]:
        classes = [node.name for node in self._program.nodes if isinstance(node, ast.ClassDef)]
        return sorted(self._program.needed([*classes, *names], is_script=True).kept)

    def check(self, field: str, wanted: str, name: str, values: Mapping[str, object], where: str) -> None:
        """See that hosts will have what a class needs as the program has it: warn of what may be another, and raise `BadRequest` if
        something is.

        Under `if __name__ == "__main__":` stands what hosts are not meant to have, so that is only warned of.
        """
        sure, perhaps = self._program.needed([name], is_script=self._is_script).losses_of(values)
        if self.has_main_block():
            ours = [loss for loss in sure if is_main_block(self._program.nodes[loss.at])]
            sure, perhaps = [loss for loss in ours if loss.name == name and loss.is_sure], ours
        advice = "" if self.has_main_block() else f"; {_ADVICE_FOR_SCRIPTS if self._is_script else _ADVICE}"
        if sure:
            raise BadRequest(field, f"{wanted} cannot be handed over: {self._words(sure, where)}{advice}")
        if perhaps:
            warn_first_time(f"{wanted} may not find in hosts what it finds here: {self._words(perhaps, where)}{advice}")

    def _words(self, losses: list[Loss], where: str) -> str:
        said = (
            f"{where} line {self._pieces[loss.at].node.lineno}, `{self._shown(loss.at)}`, {loss.how.format(name=loss.name)}"
            for loss in losses
        )
        return "; ".join(dict.fromkeys(said))

    def _shown(self, at: int) -> str:
        text = ast.unparse(self._pieces[at].node).partition("\n")[0]
        return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"

    def nodes(self, places: Iterable[int]) -> ast.Module:
        wanted = {*places}
        return ast.Module(
            [node for at, node in enumerate(self._program.nodes) if at in wanted or (wanted and is_future(node))], []
        )

    def __len__(self) -> int:
        return len(self._pieces)


def _may_come_first(piece: _Piece, meanings: Mapping[str, set[str]]) -> bool:
    if not is_import(piece.node) or "*" in meanings:
        return False
    names = (alias.asname or alias.name.partition(".")[0] for alias in getattr(piece.node, "names", ()))
    return all(len(meanings[name]) == 1 for name in names)


def _whole(text: str | bytes) -> Iterable[tuple[ast.stmt, str]]:
    return [(node, "") for node in ast.parse(text).body]


@lru_cache(maxsize=4096)  # the cells of a notebook are read again whenever one is added
def _pieces(text: str | bytes) -> Iterable[tuple[ast.stmt, str]]:
    return list(_split(text))


def _split(text: str | bytes) -> Iterator[tuple[ast.stmt, str]]:
    # An import of several names is split, so that a class depends on needed names only.
    typed = text.decode() if isinstance(text, bytes) else text
    with contextlib.suppress(SyntaxError):
        lines = typed.splitlines(keepends=True)
        for node in _one_by_one(ast.parse(typed).body):
            if is_import(node):
                yield node, ast.unparse(node)
                continue
            marks = [mark.lineno for mark in getattr(node, "decorator_list", [])]
            above = "".join(lines[min(marks) - 1 : node.lineno - 1]) if marks else ""
            yield node, above + (ast.get_source_segment(typed, node) or "")


def _one_by_one(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (ast.copy_location(ast.Import([alias]), node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (
                ast.copy_location(ast.ImportFrom(node.module, [alias], node.level), node) for alias in node.names
            )
        else:
            yield node
