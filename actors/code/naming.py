"""Names of agent classes and tool functions, by which another process finds them, perhaps years later.

    name:counter                 a class that gives itself a name (`known_types`); it may also be one of the names below
    module:Qual.Name             importable code (ours has a permanent name: `permanent_names`)
    script:/path/file.py:Name    code in a file that was run, or that is not on the import path
    cell:<digest>:Name           code of a notebook or of `python -c`; its text is kept in the code directory

Nothing is pickled. A script is named as when it is imported, also without an `if __name__ == "__main__"` block, so that adding one renames
nothing. Importing one without a block would start the program, so the place of its code is its path, which stands beside its name
(`known_types`): it is loaded under a module name of its own, and only the classes and what they need are executed. A script that nobody
could import goes by its path. Of a notebook, only what the class needs is kept (`program`), as it is when the class is asked for, so its
name does not depend on other cells.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, TracebackType
from typing import cast

from perdure.actors.code.author_call import in_words
from perdure.actors.code.carried_code import keep_code
from perdure.actors.code.import_path import (
    ROOTS,
    file_of,
    is_importable,
    is_installed,
    refuse_archive,
    root_of,
    spec_on_path,
)
from perdure.actors.code.known_types import (
    CELL_MODULE,
    NAMED,
    SCRIPT,
    NotedProgram,
    claimant,
    claimed,
    module_of_script,
    name_of_program,
    other_program_of,
    places_of,
    remember_type,
    scripts_of,
    this_program,
    warn_first_time,
    warn_of_namesakes,
)
from perdure.actors.code.packages import PinnedCode, keep_text, package_file, sources_of, unpacked
from perdure.actors.code.permanent_names import is_ours, module_of, permanent
from perdure.actors.code.program import SourceText
from perdure.actors.code.typed_texts import not_in_text, typed_so_far, typed_texts
from perdure.actors.tasks import as_failure
from perdure.ledger import BadRequest, UnknownAgentType, UnknownTool, add_line, lines_of

FIELD = "agent_type"
TOOL_FIELD = "tool"
CELL = "cell:"
_DIGEST = 10  # bytes
NO_CLASS = "pass the class itself, not its name or an object of it"
ONLY_AT_START = 'what only the program that is started needs belongs under `if __name__ == "__main__":`'
MAIN_BLOCK = 'put what starts the program under `if __name__ == "__main__":`'

Named = type | FunctionType
Unknown = functools.partial[UnknownAgentType] | functools.partial[UnknownTool]

_loading: ContextVar[bool] = ContextVar("perdure_loading", default=False)
_typed_places: dict[tuple[Named, Path | None], tuple[int, str]] = {}  # with how much was typed then
_origins: dict[str, str] = {}  # of modules that `load_type` made: the first parts of the names of their types
_executed: dict[str, set[int]] = {}  # of modules of scripts: which statements were executed
_sent: list[Path] = []  # the folders of code that was sent to this process
_origin_of: list[Callable[[Path], Path]] = []  # for code that is pinned: which file of the author this is a copy of

IMPORTING = threading.RLock()
"""Held while code is imported on a thread. Two threads that import parts of one package, whose modules need each other, find these half
made: Python breaks the deadlock so, and both raise an `ImportError`."""


# ---------------------------------------------------------------- naming


def type_name(cls: type, code_dir: Path | None = None) -> str:
    """Name a class. Text from a prompt is written to `code_dir`. Raises `BadRequest` if no other process could find it."""
    if not isinstance(cls, type):
        raise BadRequest(FIELD, f"{cls!r:.200} is not a class; {NO_CLASS}")
    return remembered_name(cls, place_name(cls, code_dir), code_dir)


@functools.lru_cache(maxsize=4096)
def remembered_name(cls: type, place: str, code_dir: Path | None) -> str:
    # Its type is written down in the directory once in a process.
    name = claimed(cls) or _durable(place, code_dir, other_program_of(cls) or this_program())
    if code_dir is not None and not is_ours(cls.__module__):
        remember_type(name, place, code_dir)
        if not claimed(cls):
            _look_for_namesakes(name, code_dir)
    return name


def _look_for_namesakes(name: str, code_dir: Path) -> None:
    # A script is named without its folder, so that a moved one keeps its agents.
    file, module = file_of(sys.modules["__main__"]), name.rpartition(":")[0]
    if file is not None and module == file.stem:
        others = [*map(Path, scripts_of(module, code_dir)), *(Path(root, file.name) for root in _known_roots(code_dir))]
        warn_of_namesakes(name, file, others)


def place_name(cls: type, code_dir: Path | None) -> str:
    return _place(cls, code_dir, FIELD)


def function_name(function: FunctionType, code_dir: Path | None) -> str:
    if not isinstance(function, FunctionType):
        raise BadRequest(TOOL_FIELD, f"{function!r} is not a function")
    return _durable(_place(function, code_dir, TOOL_FIELD), code_dir)


def _durable(place: str, code_dir: Path | None, program: NotedProgram | None = None) -> str:
    # Of a script without a main block: what it would be called with one. The program itself knows that it is run as a script; others
    # have it from the directory, where its types are written down, and so has who names a function, which is not.
    if code_dir is None or not place.startswith(SCRIPT):
        return place
    origin, _, qualname = place.rpartition(":")
    if program is not None and program.module and program.file == origin.removeprefix(SCRIPT):
        return f"{program.module}:{qualname}"
    module = module_of_script(origin, code_dir)
    return f"{module}:{qualname}" if module else place


def _place(thing: Named, code_dir: Path | None, field: str) -> str:
    typed, place = _typed_places.get((thing, code_dir), (0, ""))
    if not place:
        place = _name(thing, code_dir, field)
        if not place.startswith(CELL) or thing.__module__ in _origins:
            return place
    elif typed != typed_so_far():
        place = _place_now(thing, place, code_dir, field)
    _typed_places[thing, code_dir] = typed_so_far(), place
    return place


def what_is_typed(cls: type | None) -> int:
    """How much was typed of which a class may use something; it grows. A class of a module uses nothing of that."""
    return typed_so_far() if cls is not None and cls.__module__ == "__main__" else 0


def is_bygone(cls: type) -> bool:
    """Whether another class has the name of one that was typed, or it is a copy that was made of a text."""
    if cls.__module__.startswith(CELL_MODULE):
        return True
    now = _lookup(sys.modules["__main__"], cls.__qualname__) if cls.__module__ == "__main__" else cls
    return isinstance(now, type) and now is not cls


def _place_now(thing: Named, before: str, code_dir: Path | None, field: str) -> str:
    # More was typed: it may be what the class uses. A class that is another now, or could not be handed over any more, goes on as it was.
    try:
        place = _name.__wrapped__(thing, code_dir, field)
    except BadRequest as problem:
        if _lookup(sys.modules["__main__"], thing.__qualname__) is thing:
            warn_first_time(f"{thing.__qualname__} goes on with the code that it had: {problem.problem}")
        return before
    has_agents = isinstance(thing, type) and (not hasattr(thing, "run") or getattr(thing, "stands_alone", False))
    if place != before and code_dir is not None and has_agents and not claimed(cast("type", thing)):
        now, then = (cell_file(each.split(":")[1], code_dir).read_text().splitlines() for each in (place, before))
        what = next((line for line in now if line not in then), "less than before")
        warn_first_time(
            f"{thing.__qualname__} uses what was typed since ({what}), so it is another agent type now, whose agents begin anew; with a "
            f"name of its own it keeps them: `class {thing.__qualname__}(Agent, name=…)`"
        )
    return place


@functools.lru_cache(maxsize=4096)
def _name(thing: Named, code_dir: Path | None, field: str) -> str:
    if "<locals>" in thing.__qualname__:
        raise BadRequest(
            field, f"{thing.__qualname__} is defined inside a function, where no other process can find it; move it out"
        )
    module = sys.modules.get(thing.__module__)
    if module is None or _lookup(module, thing.__qualname__) is not thing:
        program = other_program_of(thing)
        if program is not None:
            return _place_in(program, thing.__qualname__, code_dir, field)
        raise BadRequest(field, _not_there(module, thing))
    if module.__name__ in _origins:
        return f"{_origins[module.__name__]}:{thing.__qualname__}"
    if is_ours(module.__name__):
        return f"{permanent(module.__name__)}:{thing.__qualname__}"
    if module is sys.modules["__main__"]:  # a worker of multiprocessing has it as `__mp_main__`
        return _main_name(module, thing, code_dir, field)
    refuse_archive(module, thing.__qualname__, field)
    root = root_of(module)
    if root is not None:
        _remember_root(root, code_dir)
        return f"{module.__name__}:{thing.__qualname__}"
    file = file_of(module)
    if file is None:
        what = f"the module {module.__name__} of {thing.__qualname__}"
        raise BadRequest(field, f"{what} has no file, so no other process can import it")
    return _script_place(file, SourceText([file.read_bytes()], is_script=True), thing.__qualname__, code_dir)


def _place_in(program: NotedProgram, qualname: str, code_dir: Path | None, field: str) -> str:
    # Of a class that came by value from another program, as Ray sends those of a driver's `__main__`.
    file = Path(program.file)
    if program.module and not program.file:
        return f"{permanent(program.module)}:{qualname}"
    if not file.is_file():
        what = f"of the program {file}, which is not on this machine" if program.file else "of what was typed elsewhere"
        raise BadRequest(
            field, f"{qualname} is {what}; put the class into a module of its own, which the program imports"
        )
    if program.module and not is_importable(file):
        sys.path.append(str(file.parent))
    return _script_place(file, SourceText([file.read_bytes()], is_script=True), qualname, code_dir)


def _script_place(file: Path, source: SourceText, qualname: str, code_dir: Path | None) -> str:
    if source.has_main_block() and is_importable(file):
        _remember_root(file.parent, code_dir)
        return f"{file.stem}:{qualname}"
    return f"{SCRIPT}{file}:{qualname}"


def _not_there(module: ModuleType | None, thing: Named) -> str:
    what = f"{thing.__module__}.{thing.__qualname__}"
    kind = "class" if isinstance(thing, type) else "function"
    if module is not None and _lookup(module, thing.__qualname__) is not None:
        return f"{what} is not this {kind} (was it defined again since?)"
    if module is sys.modules["__main__"] and _is_apart(thing, module):
        runner = Path(getattr(module, "__file__", None) or "what started it").name
        return (
            f"there is no {what}: {runner} runs the program in a namespace of its own, which nothing else finds; put the {kind} into a "
            "module, and have the program import it"
        )
    return (
        f"there is no {what}, so no other process can find this {kind}; bind it there to the name that it has, "
        f"or set its `__qualname__` to the name that it is bound to"
    )


def _is_apart(thing: Named, main: ModuleType) -> bool:
    # Of a program under a profiler, such as `python -m cProfile`: it is called `__main__`, which is the profiler.
    spaces = [each.__globals__ for each in (thing, *vars(thing).values()) if isinstance(each, FunctionType)]
    return any(space.get("__name__") == "__main__" and space is not vars(main) for space in spaces)


def place_of(cls: type) -> str:
    """Where a class is defined, for `loaded_class` of another process."""
    return f"{_origins.get(cls.__module__, cls.__module__)}:{cls.__qualname__}"


def loaded_class(place: str) -> type | None:
    """The class that is defined there, if this process has loaded it. Nothing is imported."""
    origin, _, qualname = place.rpartition(":")
    main = sys.modules["__main__"]
    file = file_of(main)
    runs_it = origin.startswith(CELL) or origin in (f"{SCRIPT}{file}", name_of_program(main))
    runs_it = runs_it or (file is not None and origin == file.stem and is_importable(file))
    names = [origin, *(name for name, known in _origins.items() if known == origin), *(["__main__"] if runs_it else [])]
    found = (_lookup(sys.modules[name], qualname) for name in names if name in sys.modules)
    return next((each for each in found if isinstance(each, type)), None)


def _main_name(module: ModuleType, thing: Named, code_dir: Path | None, field: str) -> str:
    name, file = name_of_program(module), file_of(module)
    top, qualname = thing.__qualname__.partition(".")[0], thing.__qualname__
    source = SourceText([file.read_bytes()], is_script=True) if file is not None else None
    if name:
        if source is not None and source.starts() and not source.has_main_block():
            raise BadRequest(
                field, f"other processes import {name}, which would start the program there, too; {MAIN_BLOCK}"
            )
        return f"{permanent(name)}:{qualname}"
    if file is not None and source is not None and source.defines(top):
        source.check(field, qualname, top, vars(module), f"{file.name},")
        return _script_place(file, source, qualname, code_dir)
    typed = _typed_program(tuple(typed_texts()))
    text = typed.excerpt(top)
    if not text:
        refuse_archive(module, qualname, field)
        typed.check(field, qualname, top, vars(module), "what was typed,")
        raise BadRequest(field, f"{qualname} {not_in_text(module, file, top)}")
    if code_dir is None:
        raise BadRequest(field, f"{qualname} was typed at a prompt, and there is no directory to keep its text in")
    typed.check(field, qualname, top, vars(module), "what was typed,")
    digest = _digest(text)
    keep_code(cell_file(digest, code_dir), text.encode())
    return f"{CELL}{digest}:{qualname}"


@functools.lru_cache(maxsize=1)
def _typed_program(texts: tuple[str, ...]) -> SourceText:
    return SourceText(texts)


def cell_file(digest: str, code_dir: Path) -> Path:
    return code_dir / f"{digest}.py"


def is_cell_whole(file: Path) -> bool:
    return hashlib.blake2b(file.read_bytes(), digest_size=_DIGEST).hexdigest() == file.stem


def _lookup(module: ModuleType, qualname: str) -> object:
    return functools.reduce(
        lambda holder, part: getattr(holder, part, None), qualname.split("."), cast("object", module)
    )


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST).hexdigest()


# ---------------------------------------------------------------- the import path


def _remember_root(root: Path, code_dir: Path | None) -> None:
    if code_dir is None or is_installed(root) or root.is_relative_to(code_dir) or str(root) in _known_roots(code_dir):
        return
    add_line(code_dir / ROOTS, str(root))


def _known_roots(code_dir: Path | None) -> list[str]:
    return [] if code_dir is None else lines_of(code_dir / ROOTS)


# ---------------------------------------------------------------- loading


def load_type(name: str, code_dir: Path | None = None) -> type:
    """Find the class of this name, and import its code if needed. Raises `UnknownAgentType`, with the cause."""
    return type_as_claimed(name, code_dir, claimant(name))


# The class that claims the name in this process is another when it was typed again.
@functools.lru_cache(maxsize=4096)
def type_as_claimed(name: str, code_dir: Path | None, _claimant: type | None) -> type:
    found = _load_claimed(name, code_dir) or _load(name, code_dir, functools.partial(UnknownAgentType, FIELD))
    if not isinstance(found, type):
        raise UnknownAgentType(FIELD, f"{name} is not a class but {found!r}")
    return found


def _load_claimed(name: str, code_dir: Path | None) -> type | None:
    # None if the name itself says where the code is. Of the places where it was, the pinned ones come first, then the newest.
    for place in sorted(places_of(name, code_dir), key=lambda place: not _is_pinned(place)):
        with contextlib.suppress(UnknownAgentType):
            found = _load(place, code_dir, functools.partial(UnknownAgentType, FIELD))
            if isinstance(found, type) and claimed(found) == name:
                return found
    found = claimant(name)
    if found is None and name.startswith(NAMED) and spec_on_path(NAMED.removesuffix(":")) is None:
        raise UnknownAgentType(
            FIELD, f"no class with name={name.removeprefix(NAMED)!r} was found where its code was last"
        )
    return found


def _is_pinned(place: str) -> bool:
    top = place.rpartition(":")[0].removeprefix(CELL).partition(".")[0]
    return any((folder / f"{top}.py").is_file() or (folder / top).is_dir() for folder in _sent)


@functools.lru_cache(maxsize=4096)
def load_function(name: str, code_dir: Path | None) -> FunctionType:
    """Find the function of this name in the same way. Raises `UnknownTool`."""
    found = _load(name, code_dir, functools.partial(UnknownTool, TOOL_FIELD))
    if not isinstance(found, FunctionType):
        raise UnknownTool(TOOL_FIELD, f"{name} is not a function but {found!r}")
    return found


def _load(name: str, code_dir: Path | None, unknown: Unknown) -> object:
    kind, _, rest = name.partition(":")
    place, _, qualname = rest.rpartition(":")
    with IMPORTING, _Loading(name, unknown):
        if kind == "script" and place:
            module = _script(place, qualname.partition(".")[0], unknown)
        elif kind == "cell" and place:
            module = _cell(place, code_dir, unknown)
        elif kind and qualname and not place:
            script = _unguarded(kind, code_dir)
            top = qualname.partition(".")[0]
            module = _script(script, top, unknown) if script else _module(module_of(kind), code_dir)
        else:
            what = "an agent type" if unknown.func is UnknownAgentType else "a function"
            raise unknown(f"{name!r} is not the name of {what}, such as 'package.module:{qualname or 'Name'}'")
        found = _lookup(module, qualname)
    if found is None:
        raise unknown(f"{name}: there is no {qualname} in {module.__file__ or module.__name__}")
    return found


def prefer_sent(folder: Path, package: str, code_dir: Path) -> None:
    """From now on this process, which may be on another machine, has its code from this folder, into which the package was unpacked."""
    sys.meta_path.insert(0, PinnedCode(folder, sources_of(package, code_dir), is_home=False))
    _sent.insert(0, folder)
    sys.path[:] = [str(folder), *(place for place in sys.path if place != str(folder))]


def prefer_pinned(package: str, code_dir: Path) -> None:
    """From now on this process has its code from this package. Raises `OSError` if that is gone."""
    pinned = PinnedCode(unpacked(package_file(package, code_dir)), sources_of(package, code_dir))
    sys.meta_path.insert(0, pinned)
    _sent.insert(0, pinned.folder)
    _origin_of.append(pinned.origin_of)


def refuse_while_loading() -> None:
    if _loading.get():
        raise BadRequest(
            "runtime", "this code starts a Runtime whenever it is imported; put that under `if __name__ == '__main__':`"
        )


class _Loading:
    def __init__(self, name: str, unknown: Unknown) -> None:
        self._name, self._unknown = name, unknown
        self._token = _loading.set(True)

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _loading.reset(self._token)
        is_known = isinstance(error, KeyboardInterrupt | UnknownAgentType | UnknownTool)
        if error is not None and not is_known and as_failure(error) is not None:
            raise self._unknown(f"{self._name} cannot be imported: {in_words(error)}{self._advice(error)}") from error

    def _advice(self, error: BaseException) -> str:
        # Not where there is nothing that could be executed.
        place = self._name.rpartition(":")[0]
        missing = (getattr(error, "name", None) or "") if isinstance(error, ImportError) else ""
        is_absent = bool(missing) and f"{place}.".startswith(f"{missing}.")
        return "" if is_absent or isinstance(error, SyntaxError) or place.startswith(CELL) else f"; {ONLY_AT_START}"


def _module(name: str, code_dir: Path | None) -> ModuleType:
    if name not in sys.modules and spec_on_path(name.partition(".")[0]) is None:
        importlib.invalidate_caches()
        sys.path.extend(root for root in _known_roots(code_dir) if root not in sys.path)
    return importlib.import_module(name)


def _unguarded(module: str, code_dir: Path | None) -> str:
    # The script of this name, which was run without a main block, and has none in the code that this process has.
    for place in scripts_of(module, code_dir):
        file = _script_file(place)
        if file is not None:
            return "" if SourceText([file.read_bytes()], is_script=True).has_main_block() else place
    return ""


def _script_file(place: str) -> Path | None:
    copies = [folder / Path(place).name for folder in _sent]
    return next((each for each in (*copies, Path(place)) if each.is_file()), None)


def _script(place: str, top: str, unknown: Unknown) -> ModuleType:
    # What starts the program is not executed.
    name = f"perdure_script_{_digest(place)}"
    loaded = sys.modules.get(name)
    if loaded is not None and hasattr(loaded, top):
        return loaded
    file = _script_file(place)
    if file is None:
        raise unknown(f"the script {place} is not there any more")
    origin = next((of(file) for of in _origin_of if file.parent in _sent), file)
    if str(origin.parent) not in sys.path:
        sys.path.append(str(origin.parent))
    text = file.read_bytes()
    keep_text(file, place)
    source = SourceText([text], is_script=True)
    wanted = range(len(source)) if source.has_main_block() else source.definitions([top])
    done = _executed.setdefault(name, set()) if loaded is not None else set()
    code = compile(source.nodes(sorted({*wanted} - done)), place, "exec", dont_inherit=True)
    module = _execute(name, f"{SCRIPT}{place}", origin, code)
    _executed[name] = {*wanted} | done
    return module


def _cell(digest: str, code_dir: Path | None, unknown: Unknown) -> ModuleType:
    file = cell_file(digest, code_dir or Path())
    loaded = sys.modules.get(f"{CELL_MODULE}{digest}")
    if loaded is not None:
        return loaded
    if code_dir is None or not file.is_file():
        raise unknown(f"the text of the notebook cell {digest} is not in the code directory {code_dir}")
    if not is_cell_whole(file):
        what = f"{file} was changed or damaged: it is not the text that was typed"
        raise unknown(f"{what}. It is written anew when a program that has the class typed again uses it")
    code = compile(file.read_bytes().decode(), str(file), "exec", dont_inherit=True)
    return _execute(f"{CELL_MODULE}{digest}", f"{CELL}{digest}", file, code)


def _execute(name: str, origin: str, file: Path, code: CodeType) -> ModuleType:
    module = sys.modules.get(name) or ModuleType(name)
    module.__file__ = str(file)
    with contextlib.ExitStack() as undo:
        if name not in sys.modules:
            sys.modules[name] = module  # before its code runs, so that its annotations can be resolved
            undo.callback(sys.modules.pop, name, None)
        exec(code, module.__dict__)  # noqa: S102 - the author's own code
        undo.pop_all()
    _origins[name] = origin
    return module
