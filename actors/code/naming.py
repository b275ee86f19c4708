"""Names of agent classes and tool functions, by which another process finds them, perhaps years later.

    name:counter                 a class that gives itself a name (`known_types`); it may also be one of the names below
    module:Qual.Name             importable code (ours has a permanent name: `permanent_names`)
    script:/path/file.py:Name    code in a file that was run, or that is not on the import path
    cell:<digest>:Name           code of a notebook or of `python -c`; its text is kept in the code directory

Nothing is pickled. A script with an `if __name__ == "__main__"` block is named as when it is imported; any other, and all in directories
of before, by its path. Such a script is loaded under a stable module name, so its block does not run; of one without a block, only the
classes and what they need are executed. Of a notebook, only what the class needs is kept (`excerpt`), so its name does not depend on other
cells.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import os
import sys
import sysconfig
import threading
from collections.abc import Callable
from contextvars import ContextVar
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, TracebackType
from typing import cast

from perdure.actors.code.author_call import in_words
from perdure.actors.code.excerpt import bound_names, definitions, excerpt, is_main_block, typed_texts
from perdure.actors.code.known_types import NAMED, claimant, claimed, places_of, remember_type
from perdure.actors.code.permanent_names import is_ours, module_of, permanent, scripts_have_module_names
from perdure.actors.code.pinned import pin
from perdure.actors.tasks import as_failure
from perdure.ledger import BadRequest, UnknownAgentType, UnknownTool

FIELD = "agent_type"
TOOL_FIELD = "tool"
ROOTS = "roots.txt"

Named = type | FunctionType
Unknown = functools.partial[UnknownAgentType] | functools.partial[UnknownTool]

_loading: ContextVar[bool] = ContextVar("perdure_loading", default=False)
_origins: dict[str, str] = {}  # of modules that `load_type` made: the first parts of the names of their types
_sent: list[Path] = []  # the folders of code that was sent to this process
_origin_of: list[Callable[[Path], Path]] = []  # for code that is pinned: which file of the author this is a copy of

IMPORTING = threading.RLock()
"""Held while code is imported on a thread. Two threads that import parts of one package, whose modules need each other, find these half
made: Python breaks the deadlock so, and both raise an `ImportError`."""


# ---------------------------------------------------------------- naming


def type_name(cls: type, code_dir: Path | None = None) -> str:
    """Name a class. Text from a prompt is written to `code_dir`. Raises `BadRequest` if no other process could find it."""
    if not isinstance(cls, type):
        raise BadRequest(FIELD, f"{cls!r} is not a class")
    place = place_name(cls, code_dir)
    name = claimed(cls) or place
    if code_dir is not None and not is_ours(cls.__module__):
        remember_type(name, place, code_dir)
    return name


def place_name(cls: type, code_dir: Path | None = None) -> str:
    """The name that is made of the place of a class's code, whatever the class calls itself."""
    return _name(cls, code_dir, FIELD)


def function_name(function: FunctionType, code_dir: Path | None = None) -> str:
    """Name a function of a module in the same way."""
    if not isinstance(function, FunctionType):
        raise BadRequest(TOOL_FIELD, f"{function!r} is not a function")
    return _name(function, code_dir, TOOL_FIELD)


@functools.lru_cache(maxsize=4096)
def _name(thing: Named, code_dir: Path | None, field: str) -> str:
    if "<locals>" in thing.__qualname__:
        raise BadRequest(
            field, f"{thing.__qualname__} is defined inside a function, where no other process can find it; move it out"
        )
    module = sys.modules.get(thing.__module__)
    if module is None or _lookup(module, thing.__qualname__) is not thing:
        what = f"{thing.__module__}.{thing.__qualname__}"
        raise BadRequest(field, f"{what} is not this {_kind(thing)} (was it defined again since?)")
    if module.__name__ in _origins:
        return f"{_origins[module.__name__]}:{thing.__qualname__}"
    if is_ours(module.__name__):
        return f"{permanent(module.__name__, code_dir)}:{thing.__qualname__}"
    if module.__name__ == "__main__":
        return _main_name(module, thing, code_dir, field)
    root = _root(module)
    if root is not None:
        _remember_root(root, code_dir)
        return f"{module.__name__}:{thing.__qualname__}"
    file = _file(module)
    if file is None:
        what = f"the module {module.__name__} of {thing.__qualname__}"
        raise BadRequest(field, f"{what} has no file, so no other process can import it")
    return f"script:{file}:{thing.__qualname__}"


def place_of(cls: type) -> str:
    """Where a class is defined, for `loaded_class` of another process."""
    return f"{_origins.get(cls.__module__, cls.__module__)}:{cls.__qualname__}"


def loaded_class(place: str) -> type | None:
    """The class that is defined there, if this process has loaded it. Nothing is imported."""
    origin, _, qualname = place.rpartition(":")
    main = sys.modules["__main__"]
    file, spec = _file(main), main.__spec__
    runs_it = origin.startswith("cell:") or origin in (f"script:{file}", getattr(spec, "name", None))
    runs_it = runs_it or (file is not None and origin == file.stem and _is_importable(file))
    names = [origin, *(name for name, known in _origins.items() if known == origin), *(["__main__"] if runs_it else [])]
    found = (_lookup(sys.modules[name], qualname) for name in names if name in sys.modules)
    return next((each for each in found if isinstance(each, type)), None)


def _kind(thing: object) -> str:
    return "class" if isinstance(thing, type) else "function"


def _main_name(module: ModuleType, thing: Named, code_dir: Path | None, field: str) -> str:
    spec = module.__spec__
    if spec is not None and spec.name != "__main__":  # python -m package.module
        return f"{permanent(spec.name, code_dir)}:{thing.__qualname__}"
    top = thing.__qualname__.partition(".")[0]
    file = _file(module)
    nodes = ast.parse(file.read_bytes()).body if file is not None else []
    if file is not None and any(top in bound_names(node) for node in nodes):
        if any(map(is_main_block, nodes)) and scripts_have_module_names(code_dir) and _is_importable(file):
            _remember_root(file.parent, code_dir)
            return f"{file.stem}:{thing.__qualname__}"
        return f"script:{file}:{thing.__qualname__}"
    text = excerpt(typed_texts(), top)
    if not text:
        raise BadRequest(
            field, f"{thing.__qualname__} was typed at a prompt that does not keep its text; put it into a file"
        )
    if code_dir is None:
        raise BadRequest(
            field, f"{thing.__qualname__} was typed at a prompt, and there is no directory to keep its text in"
        )
    digest = _digest(text)
    _write_once(cell_file(digest, code_dir), text)
    return f"cell:{digest}:{thing.__qualname__}"


def _is_importable(script: Path) -> bool:
    """Whether `import` of a script's name would find this script."""
    spec = spec_on_path(script.stem) if script.stem.isidentifier() else None
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == script


def cell_file(digest: str, code_dir: Path) -> Path:
    """Where the text of a notebook's class lies."""
    return code_dir / f"{digest}.py"


def _file(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file and Path(file).is_file() else None


def _lookup(module: ModuleType, qualname: str) -> object:
    return functools.reduce(
        lambda holder, part: getattr(holder, part, None), qualname.split("."), cast("object", module)
    )


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def _write_once(path: Path, text: str) -> None:
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


# ---------------------------------------------------------------- the import path


def spec_on_path(top: str) -> ModuleSpec | None:
    """Where a new process would find a top-level module."""
    found = (finder.find_spec(top, None) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for spec in found if spec is not None), None)


def _root(module: ModuleType) -> Path | None:
    """The directory from which a new process would import this module, or None."""
    top, *inner = module.__name__.split(".")
    spec, file = spec_on_path(top), _file(module)
    if spec is None:
        return None
    for place in spec.submodule_search_locations or ():
        home = Path(place).joinpath(*inner)
        if file in (home.with_suffix(".py").resolve(), (home / "__init__.py").resolve()):
            return Path(place).resolve().parent
    if file is None or (spec.origin and Path(spec.origin).resolve() == file):
        return file.parent if file else Path(sysconfig.get_path("stdlib"))
    return None


def is_installed(place: Path) -> bool:
    """Whether a file or folder is installed for this Python, so that every machine of a cluster has it."""
    homes = (sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
    return any(place.is_relative_to(Path(home).resolve()) for home in homes)


def _remember_root(root: Path, code_dir: Path | None) -> None:
    if code_dir is None or is_installed(root) or root.is_relative_to(code_dir) or str(root) in _known_roots(code_dir):
        return
    code_dir.mkdir(parents=True, exist_ok=True)
    with (code_dir / ROOTS).open("a", encoding="utf-8") as roots:
        roots.write(f"{root}\n")


def _known_roots(code_dir: Path | None) -> list[str]:
    if code_dir is None or not (code_dir / ROOTS).is_file():
        return []
    return (code_dir / ROOTS).read_text(encoding="utf-8").splitlines()


# ---------------------------------------------------------------- loading


@functools.lru_cache(maxsize=4096)
def load_type(name: str, code_dir: Path | None = None) -> type:
    """Find the class of this name, and import its code if needed. Raises `UnknownAgentType`, with the cause."""
    found = _load_claimed(name, code_dir) or _load(name, code_dir, functools.partial(UnknownAgentType, FIELD))
    if not isinstance(found, type):
        raise UnknownAgentType(FIELD, f"{name} is not a class but {found!r}")
    return found


def _load_claimed(name: str, code_dir: Path | None) -> type | None:
    """The class that gives itself this name: from where its code was last, or before that. None if the name says where it is."""
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
    top = place.rpartition(":")[0].partition(".")[0]
    return any((folder / f"{top}.py").is_file() or (folder / top).is_dir() for folder in _sent)


@functools.lru_cache(maxsize=4096)
def load_function(name: str, code_dir: Path | None = None) -> FunctionType:
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
            module = _script(place, unknown)
        elif kind == "cell" and place:
            module = _cell(place, code_dir, unknown)
        elif kind and qualname and not place:
            module = _module(module_of(kind), code_dir)
        else:
            what = "an agent type" if unknown.func is UnknownAgentType else "a function"
            raise unknown(f"{name!r} is not the name of {what}, such as 'package.module:{qualname or 'Name'}'")
        found = _lookup(module, qualname)
    if found is None:
        raise unknown(f"{name}: there is no {qualname} in {module.__file__ or module.__name__}")
    return found


def prefer_sent(folder: Path) -> None:
    """Look for code in this folder first."""
    _sent.insert(0, folder)
    sys.path[:] = [str(folder), *(place for place in sys.path if place != str(folder))]


def prefer_pinned(package: str, code_dir: Path) -> None:
    """Take all code that is in this package from there, whatever has become of the files that it was made from."""
    pinned = pin(package, code_dir)
    _sent.insert(0, pinned.folder)
    _origin_of.append(pinned.origin_of)


def refuse_while_loading() -> None:
    """Raise `BadRequest` if the caller is a module that is being loaded for a class."""
    if _loading.get():
        raise BadRequest(
            "runtime", "this code starts a Runtime whenever it is imported; put that under `if __name__ == '__main__':`"
        )


class _Loading:
    """Turns what an author's module raises during its import into an unknown name, with the cause."""

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
            raise self._unknown(f"{self._name} cannot be imported: {in_words(error)}") from error


def _module(name: str, code_dir: Path | None) -> ModuleType:
    if name not in sys.modules and spec_on_path(name.partition(".")[0]) is None:
        importlib.invalidate_caches()
        sys.path.extend(root for root in _known_roots(code_dir) if root not in sys.path)
    return importlib.import_module(name)


def _script(place: str, unknown: Unknown) -> ModuleType:
    """The module of a script: as it was sent to this process, or from its own path."""
    sent = [folder / Path(place).name for folder in _sent]
    file = next((each for each in (*sent, Path(place)) if each.is_file()), None)
    if file is None:
        raise unknown(f"the script {place} is not there any more")
    origin = next((of(file) for of in _origin_of if file.parent in _sent), file)
    if str(origin.parent) not in sys.path:
        sys.path.append(str(origin.parent))
    tree = ast.parse(file.read_bytes(), str(file))
    if not any(is_main_block(node) for node in tree.body):
        tree = definitions(tree)
    return _execute(f"perdure_script_{_digest(place)}", f"script:{place}", origin, compile(tree, str(file), "exec"))


def _cell(digest: str, code_dir: Path | None, unknown: Unknown) -> ModuleType:
    file = cell_file(digest, code_dir or Path())
    if code_dir is None or not file.is_file():
        raise unknown(f"the text of the notebook cell {digest} is not in the code directory {code_dir}")
    text = file.read_text(encoding="utf-8")
    if _digest(text) != digest:
        raise unknown(f"{file} was changed: it is not the text that was typed")
    return _execute(f"perdure_cell_{digest}", f"cell:{digest}", file, compile(text, str(file), "exec"))


def _execute(name: str, origin: str, file: Path, code: CodeType) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(file)
    with contextlib.ExitStack() as undo:
        sys.modules[name] = module  # before its code runs, so that its annotations can be resolved
        undo.callback(sys.modules.pop, name, None)
        exec(code, module.__dict__)  # noqa: S102 - the author's own code
        undo.pop_all()
    _origins[name] = origin
    return module
