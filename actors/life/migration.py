"""Versions of what an agent keeps: `class Till(Agent, version=2)` and `migrate`.

The version stands in the storage. A life of a newer class calls `migrate` first of all, in one transaction that also writes the new
version: killed before its commit, nothing happened, and the next life calls it again; killed after it, it is done. If it raises, everything
stays as it was, and the agent does not come up: callers get the error, its mail is parked in the end, and a run that it carries is parked.
An older class than the storage's is refused, because it does not know what it would find.
"""

from __future__ import annotations

from typing import Final

from perdure.actors.code.author_call import in_words
from perdure.actors.life.activity import Activity
from perdure.actors.life.life import Life
from perdure.actors.life.one_transaction import Step, WorkPiece, done_in_one
from perdure.actors.life.outbox import Outbox
from perdure.ledger import MigrationFailed, StorageTooNew, pack, unpack
from perdure.ledger.storage.agent_storages import VERSION, Transaction

FIRST: Final = 1  # of a class that says none, and of a storage that was written for one


async def bring_up_to_date(life: Life, outbox: Outbox) -> None:
    """Bring what the agent keeps to the version of its class. Raises `MigrationFailed`, `StorageTooNew`."""
    wanted = type(life.agent).__perdure_version__
    is_new = not life.has_storage
    kept = None if is_new else life.storage.document(VERSION, "")
    version = wanted if is_new else FIRST if kept is None else int(unpack(kept))
    if version > wanted:
        raise StorageTooNew(life.agent_id, version, wanted)
    if version == wanted and (kept is not None or wanted == FIRST):
        return

    def steps(_: Transaction) -> list[Step]:
        activity = Activity(origin=f"{life.agent_id}/migrate/{wanted}")
        return [] if is_new else [(life.agent.migrate, (version,), activity)]

    problem = await done_in_one(
        life, outbox, WorkPiece("migrate", steps, lambda done: done.put(VERSION, "", pack(wanted)))
    )
    if problem is not None:
        life.log("hook", f"migrate from version {version} to {wanted}", problem)
        raise MigrationFailed(life.agent_id, version, wanted, in_words(problem)) from problem
