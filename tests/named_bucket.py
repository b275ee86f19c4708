"""The bucket that `PERDURE_TEST_BUCKET` names, to try a real one: `s3://bucket/prefix`, `gs://…` or `az://…`, with keys and endpoint in the
variables of its store. Every test has a fresh prefix in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from perdure.ledger.slots import AFTER_ALL, delete, names
from perdure.ledger.store.bucket import Bucket

VARIABLE = "PERDURE_TEST_BUCKET"
NAMED = os.environ.get(VARIABLE, "")


@contextmanager
def fresh_prefix() -> Iterator[str]:
    """A URL under which there is nothing. What is there afterwards is deleted."""
    url = f"{NAMED.rstrip('/')}/{uuid4().hex}"
    try:
        yield url
    finally:
        bucket = Bucket(url)
        bucket.run(delete(bucket.run(names("", AFTER_ALL))))
