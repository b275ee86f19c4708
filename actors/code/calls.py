"""What calls do that cannot be seen into, judged by the names of their functions and by whom they were imported from."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Mapping
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Final
from uuid import UUID

from perdure.actors.code.effects import ANYTHING, Call

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
    """Whether an object can become another without being bound anew."""
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
        """A path by which another program would import it."""
        top, dot, rest = path.partition(".")
        return self._imports.get(top, top) + dot + rest

    def starts(self, call: Call) -> bool:
        """Whether it begins the work of a program, or asks for what only the program's own process has."""
        path = self.whole(call.path)
        return path in STARTS or self.is_runtime(path) or call.name in _STARTING_METHODS

    def is_runtime(self, origin: str) -> bool:
        """Whether this is `Runtime`, or what stands for it in tests."""
        return origin.rpartition(".")[2] in RUNTIMES

    def is_process_wide(self, call: Call) -> bool:
        """Whether it sets something of the whole process."""
        return self.whole(call.path) in _PROCESS_WIDE

    def collects(self, call: Call) -> bool:
        """Whether the object of which it is a method keeps what it is given."""
        return _COLLECTS.match(call.name) is not None

    def changed(self, call: Call) -> set[str]:
        """Names whose objects it changes, as far as names tell."""
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

    def doubtful(self, call: Call) -> set[str]:
        """Names whose objects it may change, for all that can be seen."""
        path = self.whole(call.path)
        name, top = path.rpartition(".")[2] or call.name, path.partition(".")[0]
        if _LOOKS.match(name) or name[:1].isupper() or (not call.on and hasattr(builtins, call.name)):
            return set()
        if call.on & self._modules or (not call.on and call.name in self._imports):
            return set() if top in sys.stdlib_module_names else set(call.given)
        return set(call.on | call.given)
