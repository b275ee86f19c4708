"""The statements by which an agent's records are written and read, each parsed once for the whole process.

That saves half of what a short statement costs (0.5 ms); its places are bound anew for each database.
"""

from __future__ import annotations

import atexit
from functools import lru_cache
from itertools import chain

import duckdb

from ledger.agent_records import Row

Bound = tuple[duckdb.Statement, list[object]]

_INSERT = (
    "INSERT INTO perdure.records "
    "SELECT unnest($1::BIGINT[]), unnest($2::VARCHAR[]), unnest($3::VARCHAR[]), unnest($4::BLOB[])"
)
_INSERT_VALUES = "INSERT INTO perdure.records VALUES "
_BODY = "SELECT number, body FROM perdure.records WHERE number = $1"
_BODIES = "SELECT number, body FROM perdure.records WHERE number IN (SELECT unnest($1::BIGINT[]))"
_ROWS_AS_VALUES_MAX = 8


def insertion(number: int, rows: list[Row]) -> Bound:
    """Write these rows, numbered from `number` on. A few are faster as values (by 0.2 ms), many as lists."""
    numbers = range(number, number + len(rows))
    if len(rows) > _ROWS_AS_VALUES_MAX:
        return _parsed(_INSERT), [list(numbers), *map(list, zip(*rows, strict=True))]
    places = ", ".join(f"(${4 * at + 1}, ${4 * at + 2}, ${4 * at + 3}, ${4 * at + 4})" for at in range(len(rows)))
    values = chain.from_iterable((each, *row) for each, row in zip(numbers, rows, strict=True))
    return _parsed(_INSERT_VALUES + places), list(values)


def bodies(numbers: list[int]) -> Bound:
    """Read the bodies of the rows with these numbers, as `(number, body)`."""
    return (_parsed(_BODY), [*numbers]) if len(numbers) == 1 else (_parsed(_BODIES), [numbers])


@lru_cache(maxsize=64)
def _parsed(text: str) -> duckdb.Statement:
    return duckdb.extract_statements(text)[0]


atexit.register(_parsed.cache_clear)  # what is left of DuckDB at the very end is called a leak, on stderr
