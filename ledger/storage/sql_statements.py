"""The statements by which an agent's records are written and read, each parsed once for the whole process.

That saves half of what a short statement costs (0.5 ms); its places are bound anew for each database.
"""

from __future__ import annotations

import atexit
from functools import lru_cache
from itertools import chain

import duckdb

from perdure.ledger.storage.records import GONE, OUTBOX, STATE, Row

Bound = tuple[duckdb.Statement, list[object]]

_INSERT = (
    "INSERT INTO perdure.records "
    "SELECT unnest($1::BIGINT[]), unnest($2::VARCHAR[]), unnest($3::VARCHAR[]), unnest($4::BLOB[])"
)
_INSERT_VALUES = "INSERT INTO perdure.records VALUES "
_BODIES = "SELECT number, body FROM perdure.records WHERE number IN "
_MANY_BODIES = f"{_BODIES} (SELECT unnest($1::BIGINT[]))"
_LOAD = (  # of other kinds only whether there is a body: without one the document is deleted
    "SELECT number, kind, key, CASE WHEN kind IN ($1, $2, $3) THEN body WHEN body IS NOT NULL THEN ''::BLOB END "
    "FROM perdure.records"
)
_OWNER = "SELECT * FROM perdure.meta"
_TAKE = "UPDATE perdure.meta SET incarnation = $1"
_SIGN = "INSERT INTO perdure.meta VALUES ($1, $2, $3, $4)"
_ROWS_AS_VALUES_MAX = 8
_BODIES_BY_NAME_MAX = 16


def insertion(rows: list[tuple[int, Row]]) -> Bound:
    # A few rows are faster as values (by 0.2 ms), many as lists.
    flat = [(number, *row) for number, row in rows]
    if len(flat) > _ROWS_AS_VALUES_MAX:
        return _parsed(_INSERT), [list(column) for column in zip(*flat, strict=True)]
    places = ", ".join(f"(${4 * at + 1}, ${4 * at + 2}, ${4 * at + 3}, ${4 * at + 4})" for at in range(len(flat)))
    return _parsed(_INSERT_VALUES + places), list(chain.from_iterable(flat))


def bodies(numbers: list[int]) -> Bound:
    # As `(number, body)`. A few are faster one by one (by 0.9 ms), many as a list.
    if len(numbers) > _BODIES_BY_NAME_MAX:
        return _parsed(_MANY_BODIES), [numbers]
    places = ", ".join(f"${place}" for place in range(1, len(numbers) + 1))
    return _parsed(f"{_BODIES} ({places})"), [*numbers]


def everything() -> Bound:
    """Read all records as `(number, kind, key, body)`, in no order, with the bodies that the fold needs."""
    return _parsed(_LOAD), [STATE, OUTBOX, GONE]


def owner() -> Bound:
    """Read whose storage it is: `(agent_id, incarnation, schema_version, clock)`, or nothing yet."""
    return _parsed(_OWNER), []


def taking(incarnation: int) -> Bound:
    return _parsed(_TAKE), [incarnation]


def signing(agent_id: str, incarnation: int, version: int, clock: int) -> Bound:
    return _parsed(_SIGN), [agent_id, incarnation, version, clock]


@lru_cache(maxsize=64)
def _parsed(text: str) -> duckdb.Statement:
    return duckdb.extract_statements(text)[0]


atexit.register(_parsed.cache_clear)  # DuckDB reports what is left at exit as a leak, on stderr
