"""The agent types that a directory knows, and where their code is: a line for each in `code/types.txt`, the newest last. A line that is not
as it was written is passed over, and written again when its type is used.

A type's durable name is what its agents' addresses and storages are made of. It is the name that its class gives itself
(`class Counter(Agent, name="counter")`), or else made of the place of its code. A class that is moved without a name of its own is another
type, with other agents; that is warned of, because it is never meant.
"""

from __future__ import annotations

import ast
import functools
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from perdure.actors.code.carried_code import add_type
from perdure.actors.code.import_path import ROOTS, file_of, files_of_module, is_importable
from perdure.ledger import TYPES, BadRequest, lines_of, numbered_lines, origin_of

NAMED: Final = "name:"
SCRIPT: Final = "script:"
CELL_MODULE: Final = "perdure_cell_"
log = logging.getLogger("perdure.code")

_claims: dict[str, type] = {}  # the classes of this process that have a name of their own
_warned: set[str] = set()  # what this process has warned of


class KnownType(NamedTuple):
    name: str
    place: str  # the name that is made of the place of its code

    @property
    def class_name(self) -> str:
        return self.place.rpartition(":")[2]


def claim(cls: type, name: str) -> None:
    """A class says which durable name it has: a word, or a name that was made of a place before. Raises `BadRequest` if another class has
    it, or if it is none."""
    if (
        not isinstance(name, str)
        or not name
        or not name.isprintable()
        or name != name.strip()
        or any(letter in "@>/" for letter in name.partition(":")[0])
    ):
        raise BadRequest("name", f"{name!r} of {cls.__qualname__} is no name: it has letters, digits, '-', '_' or '.'")
    durable = name if ":" in name else NAMED + name
    if durable.startswith("perdure."):
        raise BadRequest("name", f"{name!r} of {cls.__qualname__} is one of Perdure's own names")
    other = _claims.get(durable)
    if other is not None and _place_of(other) != _place_of(cls):
        raise BadRequest(
            "name",
            f"{name!r} is claimed by {' and by '.join(map(_place_of, (other, cls)))}; one of them needs another name",
        )
    _claims[durable] = cls
    cls.__perdure_name__ = durable  # type: ignore[attr-defined]


def note_program(cls: type) -> None:
    """A class of `__main__` keeps of which program it is: Ray pickles it by value, and where it arrives, `__main__` is another program."""
    if sys.modules.get(cls.__module__) is sys.modules["__main__"]:
        cls.__perdure_program__ = this_program()  # type: ignore[attr-defined]


class NotedProgram(NamedTuple):
    """What was run: the name under which it is imported, if it can be, and the file; neither for what was typed."""

    module: str
    file: str


def this_program() -> NotedProgram:
    main = sys.modules["__main__"]
    name, file = name_of_program(main), file_of(main)
    return NotedProgram(name or (file.stem if file and is_importable(file) else ""), "" if name else str(file or ""))


def name_of_program(main: ModuleType) -> str:
    # What `python -m package.module` imports; empty for a script. Where a debugger runs the program there is no `__spec__`.
    spec = getattr(main, "__spec__", None)
    return "" if spec is None or spec.name == "__main__" else str(spec.name)


def other_program_of(thing: object) -> NotedProgram | None:
    # Of a class that came by value.
    noted = vars(thing).get("__perdure_program__")
    return noted if noted is not None and noted != this_program() else None


def claimed(cls: type) -> str:
    # A name of its own is not inherited.
    return str(vars(cls).get("__perdure_name__", ""))


def claimant(name: str) -> type | None:
    return _claims.get(name)


def _place_of(cls: type) -> str:
    if cls.__module__.startswith(CELL_MODULE):  # its text has all that it uses, so the same class may be in several
        return f"__main__:{cls.__qualname__}"
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return f"{Path(file).resolve() if file else cls.__module__}:{cls.__qualname__}"


def known_types(code_dir: Path | None) -> list[KnownType]:
    lines = [] if code_dir is None else lines_of(code_dir / TYPES)
    return [known for known in map(_known, lines) if known is not None]


def damaged_lines(code_dir: Path) -> list[int]:
    lines = numbered_lines(code_dir / TYPES)
    return [number for number, line in lines.items() if line is None or (line and _known(line) is None)]


@functools.lru_cache(maxsize=4096)  # all lines are read again for each class that is added
def _known(line: str) -> KnownType | None:
    match line.split("\t"):
        case [name, place, digest] if digest == _digest(name, place):
            return KnownType(name, place)
    return None


def _digest(name: str, place: str) -> str:
    return "=" + blake2b(f"{name}\t{place}".encode(), digest_size=6).hexdigest()


def places_of(name: str, code_dir: Path | None) -> list[str]:
    # The newest first; empty if the name itself says where the code is.
    found = (known for known in reversed(known_types(code_dir)) if known.name == name != known.place)
    return [known.place for known in found if not _is_of_script(known)]


def _is_of_script(known: KnownType) -> bool:
    # Of one that was run without a main block: it is named like the module that it would be with one.
    script, _, qualname = known.place.removeprefix(SCRIPT).rpartition(":")
    return known.place.startswith(SCRIPT) and known.name == f"{Path(script).stem}:{qualname}"


def scripts_of(module: str, code_dir: Path | None) -> list[str]:
    """The paths of the scripts that were run without a main block under the name of this module, the newest first."""
    found = (known for known in reversed(known_types(code_dir)) if origin_of(known.name) == module)
    return list(dict.fromkeys(origin_of(known.place).removeprefix(SCRIPT) for known in found if _is_of_script(known)))


def module_of_script(origin: str, code_dir: Path) -> str:
    """What the types of a script are named after if it is one of those; else empty."""
    module = Path(origin.removeprefix(SCRIPT)).stem
    return module if origin.removeprefix(SCRIPT) in scripts_of(module, code_dir) else ""


def remember_type(name: str, place: str, code_dir: Path) -> None:
    """Write a type down that a program uses, and warn if one of the same class name is known under another."""
    known, this = known_types(code_dir), KnownType(name, place)
    before = scripts_of(origin_of(name), code_dir) if _is_of_script(this) else []
    is_elsewhere = before[:1] not in ([], [origin_of(place).removeprefix(SCRIPT)])
    if this not in known or is_elsewhere or places_of(name, code_dir)[:1] not in ([], [place]):
        add_type(code_dir, f"{name}\t{place}\t{_digest(name, place)}")
    for words in mistakable(code_dir, name):
        warn_first_time(words)


def warn_of_namesakes(name: str, file: Path, others: Iterable[Path]) -> None:
    """Warn if a script of the same name, in another folder, has another class of this one's name: the two are one type."""
    qualname = name.rpartition(":")[2]
    for other in dict.fromkeys(others):
        if other != file and _has_class(other, qualname) and other.read_bytes() != file.read_bytes():
            warn_first_time(
                f"{qualname} of {file} and {qualname} of {other} are one agent type, {name}, with the same agents. If they are two, give "
                "each a `name=`, or each program a data directory of its own."
            )


def warn_first_time(words: str) -> None:
    if words not in _warned:
        _warned.add(words)
        log.warning("%s", words)


def _has_class(file: Path, qualname: str) -> bool:
    with suppress(OSError, SyntaxError, ValueError):
        nodes = ast.walk(ast.parse(file.read_bytes()))
        return any(isinstance(node, ast.ClassDef) and node.name == qualname.rpartition(".")[2] for node in nodes)
    return False


def mistakable(code_dir: Path | None, name: str = "") -> Iterator[str]:
    """Types of the same class name, of which one may be the other's, moved, in a sentence each: of all pairs, or of those with this type.
    Where the code has the classes of both, neither was moved."""
    # A program has its own code on its path.
    roots = [] if name or code_dir is None else lines_of(code_dir / ROOTS)[::-1]
    types = {known.name: known for known in known_types(code_dir) if not known.name.startswith("cell:")}
    seen: dict[str, KnownType] = {}
    for known in types.values():
        other = seen.setdefault(known.class_name, known)
        is_meant = other is not known and name in ("", known.name, other.name)
        if is_meant and not (_is_there(other, roots) and _is_there(known, roots)):
            yield _advice(other.name, known)


def _is_there(known: KnownType, roots: Iterable[str]) -> bool:
    origin, _, qualname = known.place.rpartition(":")
    script = Path(origin.removeprefix(SCRIPT))
    files = [script] if origin.startswith(SCRIPT) else files_of_module(origin, roots)
    return any(_has_class(file, qualname) for file in files)


def _advice(first: str, second: KnownType) -> str:
    return (
        f"{first} and {second.name} are two agent types, each with agents and storages of its own. If {second.class_name} was moved or"
        f" renamed, write `class {second.class_name}(Agent, name={first!r})`, and it goes on with the agents of before. If they are two,"
        " give each a `name=`."
    )


def by_type(rows: Sequence[Mapping[str, Any]], code_dir: Path, only: str | None) -> list[dict[str, Any]]:
    """What is known of code that came, as rows of the types in it: the ledger knows code by its modules, and types by their agents. `only`
    is a type, or a module."""
    known = {each.name: origin_of(each.name) for each in known_types(code_dir)}
    code = {origin_of(row["agent_type"]): row for row in rows}
    listed = [dict(row) for row in rows if row["agent_type"] in known or row["agent_type"] not in known.values()]
    named = {row["agent_type"] for row in listed}
    listed += [_at_rest(name, code[origin]) for name, origin in known.items() if name not in named and origin in code]
    chosen = [row for row in listed if only in (None, row["agent_type"], origin_of(row["agent_type"]))]
    return sorted(chosen, key=itemgetter("agent_type"))


def _at_rest(name: str, code: Mapping[str, object]) -> dict[str, object]:
    nothing: dict[str, object] = {key: [] if isinstance(value, list) else 0 for key, value in code.items()}
    return {**nothing, "agent_type": name, "newest": code["newest"], "since_at_ms": code["since_at_ms"]}
