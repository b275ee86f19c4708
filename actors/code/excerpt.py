"""The part of a notebook, prompt or script that a class needs (`actors.code.program`): as text, or as statements; and what is amiss."""

from __future__ import annotations

import ast
import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from perdure.actors.code.name_effects import ANYTHING
from perdure.actors.code.program import Loss, Program
from perdure.actors.code.statements import is_future, is_import, is_main_block, is_plain_import
from perdure.ledger import BadRequest

_TEXT_MAX: Final = 80
log = logging.getLogger("perdure.code")


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
        self._pieces = [piece for part, text in enumerate(texts) for piece in split(text, part)]
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

    def definitions(self, names: Iterable[str] = ()) -> list[int]:
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
            log.warning(
                "%s may not find in hosts what it finds here: %s%s", wanted, self._words(perhaps, where), advice
            )

    def _words(self, losses: list[Loss], where: str) -> str:
        said = (
            f"{where} line {self._pieces[loss.at].node.lineno}, `{self._shown(loss.at)}`, {loss.how.format(name=loss.name)}"
            for loss in losses
        )
        return "; ".join(dict.fromkeys(said))

    def _shown(self, at: int) -> str:
        text = ast.unparse(self._pieces[at].node).partition("\n")[0]
        return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"

    def nodes(self, places: Iterable[int]) -> ast.Module:
        wanted = {*places}
        return ast.Module(
            [node for at, node in enumerate(self._program.nodes) if at in wanted or (wanted and is_future(node))], []
        )

    def __len__(self) -> int:
        return len(self._pieces)


_ADVICE: Final = "put the class, and all that it needs, into a module"
_ADVICE_FOR_SCRIPTS: Final = (
    'put what starts the program under `if __name__ == "__main__":`, and hosts execute everything else as it is'
)


def _may_come_first(piece: _Piece, meanings: Mapping[str, set[str]]) -> bool:
    if not is_import(piece.node) or "*" in meanings:
        return False
    names = (alias.asname or alias.name.partition(".")[0] for alias in getattr(piece.node, "names", ()))
    return all(len(meanings[name]) == 1 for name in names)


def _whole(text: str | bytes, part: int) -> Iterator[_Piece]:
    yield from (_Piece(node, "", part) for node in ast.parse(text).body)


def _pieces(text: str | bytes, part: int) -> Iterator[_Piece]:
    # An import of several names is split, so that a class depends on needed names only.
    typed = text.decode() if isinstance(text, bytes) else text
    with contextlib.suppress(SyntaxError):
        lines = typed.splitlines(keepends=True)
        for node in _one_by_one(ast.parse(typed).body):
            if is_import(node):
                yield _Piece(node, ast.unparse(node), part)
                continue
            marks = [mark.lineno for mark in getattr(node, "decorator_list", [])]
            above = "".join(lines[min(marks) - 1 : node.lineno - 1]) if marks else ""
            yield _Piece(node, above + (ast.get_source_segment(typed, node) or ""), part)


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
