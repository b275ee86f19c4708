"""Small changes of a source, each by one operator at one place: what a slip of the hand would leave (`test_mutants`).

Types, decorators and texts for people are left alone. Of the libraries, `cosmic-ray` removes no call and no assignment and changes
types, and `mutmut` runs the tests in its own way; so the operators are these, on the positions of Python's own syntax tree.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Is: (r"\bis\b", "is not"),
    ast.IsNot: (r"\bis\s+not\b", "is"),
    ast.In: (r"\bin\b", "not in"),
    ast.NotIn: (r"\bnot\s+in\b", "in"),
}
OPPOSITES = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
SUMS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "//"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
}


class Change(NamedTuple):
    """One change of a file: the bytes from `start` to `end` become `after`. `lines` are those of what is changed, first and last."""

    file: str
    operator: str
    start: int
    end: int
    after: str
    lines: tuple[int, int]

    def made(self, source: str) -> str:
        """The source with this change."""
        raw = source.encode()
        return (raw[: self.start] + self.after.encode() + raw[self.end :]).decode()

    def told(self, source: str) -> str:
        """The line before and after."""
        at = source.encode()[: self.start].count(b"\n")
        return f"{source.splitlines()[at].strip()} => {self.made(source).splitlines()[at].strip()}"


def changes_of(file: str, source: str) -> list[Change]:
    """Every change of a source, in the order of its lines."""
    reader = _Reader(file, source)
    reader.visit(ast.parse(source))
    return sorted(reader.found, key=lambda each: (each.start, each.end, each.after))


class _Reader(ast.NodeVisitor):
    def __init__(self, file: str, source: str) -> None:
        self.found: list[Change] = []
        self._file, self._raw = file, source.encode()
        lines = self._raw.splitlines(keepends=True)
        self._begins = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
        self._is_made = False  # whether we are where an object gets its first values

    # where something is

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._begins[node.lineno - 1] + node.col_offset
        return start, self._begins[node.end_lineno - 1] + node.end_col_offset

    def _change(self, operator: str, node: ast.expr | ast.stmt, start: int, end: int, after: str) -> None:
        lines = node.lineno, node.end_lineno or node.lineno
        self.found.append(Change(self._file, operator, start, end, after, lines))

    def _between(
        self, operator: str, whole: ast.expr | ast.stmt, left: int, right: int, signs: tuple[str, str]
    ) -> None:
        """Change the sign that stands between two places."""
        found = re.compile(signs[0].encode()).search(self._raw, left, right)
        if found is not None:
            self._change(operator, whole, *found.span(), signs[1])

    def _negate(self, test: ast.expr) -> None:
        """Swap the branches of a condition, unless another operator does the same."""
        is_done = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], OPPOSITES)
        is_done |= isinstance(test, ast.Constant) or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))
        if not is_done:
            start, end = self._span(test)
            self._change("swapped branches", test, start, end, f"not ({self._raw[start:end].decode()})")

    # what is left alone

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """A text, in which Python 3.11 does not say where things are."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit_all([node.value])

    def _visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before, self._is_made = self._is_made, node.name == "__init__"
        self._visit_all([*node.args.defaults, *node.args.kw_defaults, *node.body])
        self._is_made = before

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    # what is changed

    def visit_Compare(self, node: ast.Compare) -> None:
        for (left, right), op in zip(pairwise([node.left, *node.comparators]), node.ops, strict=True):
            self._between("comparison", node, self._span(left)[1], self._span(right)[0], COMPARISONS[type(op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        signs = (r"\band\b", "or") if isinstance(node.op, ast.And) else (r"\bor\b", "and")
        for left, right in pairwise(node.values):
            self._between("and/or", node, self._span(left)[1], self._span(right)[0], signs)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start = self._span(node)[0]
            self._change("no not", node, start, start + len("not"), "")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in SUMS and not (_is_text(node.left) or _is_text(node.right)):
            self._between("sum", node, self._span(node.left)[1], self._span(node.right)[0], SUMS[type(node.op)])
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._change("constant", node, *self._span(node), str(not node.value))
        elif isinstance(node.value, int | float):
            self._change("constant", node, *self._span(node), repr(node.value + 1))

    def _visit_condition(self, node: ast.If | ast.While | ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    visit_If = visit_While = visit_IfExp = _visit_condition  # noqa: N815

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._change("break/continue", node, *self._span(node), "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._change("break/continue", node, *self._span(node), "break")

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call):
            self._change("removed call", node, *self._span(node), "pass")
        self.generic_visit(node)

    def _visit_setting(self, node: ast.Assign | ast.AugAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if not self._is_made and not any(map(_binds, targets)):
            self._change("removed setting", node, *self._span(node), "pass")
        self.generic_visit(node)

    visit_Assign = visit_AugAssign = _visit_setting  # noqa: N815


def _binds(target: ast.expr) -> bool:
    """Whether a name of its own function or module is set: without it, the next line fails."""
    return any(isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) for each in ast.walk(target))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
