"""What was typed into a notebook, a prompt, or a command."""

from __future__ import annotations

import ast
import builtins
import contextlib
import linecache
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple, Protocol, cast

# Cell magics whose cells define what they would define without.
_RUN_AS_THEY_ARE: Final = ("capture", "debug", "prun", "time")


class _Shell(Protocol):
    user_ns: Mapping[str, Sequence[str]]


def typed_so_far() -> int:
    """How many texts were typed, at little cost: it grows whenever there is more, and of a program that is a file it stays 0."""
    shell = _shell()
    if shell is not None:
        return len(shell.user_ns.get("In", ()))
    return 0 if getattr(sys.modules["__main__"], "__file__", None) else len(linecache.cache)


def _shell() -> _Shell | None:
    main = sys.modules["__main__"]
    ask = getattr(main, "get_ipython", None) or getattr(builtins, "get_ipython", None)
    return cast("Callable[[], _Shell | None]", ask)() if ask is not None else None


def typed_texts() -> list[str]:
    """Everything typed so far, oldest first: the cells of a notebook, or the text of `python -c`, stdin or a prompt."""
    shell = _shell()
    if shell is not None:
        transform = cast("Callable[[str], str]", getattr(shell, "transform_cell", str))
        return [_as_python(transform, cell) for cell in _cells()]
    texts = ["".join(entry[2]) for name, entry in linecache.cache.items() if name.startswith("<") and len(entry) > 1]
    if sys.argv[:1] == ["-c"]:
        texts += _command()
    elif sys.argv[:1] in (["-"], [""]):
        with contextlib.suppress(OSError):  # it is closed
            if stat.S_ISREG(os.fstat(0).st_mode):
                texts.append(os.pread(0, os.fstat(0).st_size, 0).decode())
    return texts


def not_in_text(main: ModuleType, file: Path | None, name: str) -> str:
    if file is not None:
        return (
            f"is not defined at the top level of {file}, where other processes look for it, but inside a function or by `exec`; "
            "define it at the top level"
        )
    place = getattr(main, "__file__", None) or "<"
    if not place.startswith("<"):
        return f"is of the file {place}, which is not there any more; put it back, or into another"
    is_interactive = sys.flags.interactive or hasattr(sys, "ps1")
    if sys.argv[:1] in (["-"], [""]) and not is_interactive:
        return "came through standard input, which does not keep its text; put it into a file"
    for magic, body in filter(None, map(_cell_magic, _cells())):
        if f"class {name}" in body:
            return f"is defined in a cell that begins with `%%{magic}`; what that makes of it is not known, so put it into a cell without"
    return "is not in the text that was typed at a prompt, or the prompt does not keep its text; put it into a file"


def _cells() -> list[str]:
    shell = _shell()
    return [] if shell is None else list(shell.user_ns.get("In", ()))


@lru_cache(maxsize=4096)
def _as_python(transform: Callable[[str], str], cell: str) -> str:
    with contextlib.suppress(SyntaxError):
        text = transform(cell)
        magic = _cell_magic(text)
        return _as_python(transform, magic.body) if magic is not None and magic.name in _RUN_AS_THEY_ARE else text
    return ""


class _CellMagic(NamedTuple):
    name: str
    body: str


# What a cell that begins with `%%` is to the shell: `get_ipython().run_cell_magic('time', '', 'its text')`.
def _cell_magic(text: str) -> _CellMagic | None:
    if not text.startswith("get_ipython().run_cell_magic("):
        return None
    with contextlib.suppress(SyntaxError, ValueError, AttributeError):
        call = cast("ast.Call", ast.parse(text.strip(), mode="eval").body)
        name, _, body = map(ast.literal_eval, call.args)
        return _CellMagic(name, body)
    return None


def _command() -> Iterator[str]:
    for option, text in zip(sys.orig_argv, sys.orig_argv[1:], strict=False):
        if option.startswith("-") and not option.startswith("--") and option.endswith("c"):
            yield text
            return
