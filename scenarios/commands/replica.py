"""`perdure replica`: where a directory is followed to, and how far that is behind."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perdure import actors
from perdure.ledger import (
    LAG_MAX_MS,
    LAG_MS,
    BadRequest,
    bucket_of,
    checked_replica,
    given_as,
    keep_replica,
    lasting,
    replica_of,
)
from perdure.scenarios.commands.opening import served
from perdure.scenarios.commands.options import HERE, AsJson, Data
from perdure.scenarios.commands.shown import json_of


def replica(
    url: Annotated[
        str | None, typer.Argument(help="Follow the directory there from its next start on: s3://bucket/prefix.")
    ] = None,
    lag_ms: Annotated[int, typer.Option(help="How often what is new is brought there.")] = LAG_MS,
    lag_max_ms: Annotated[int, typer.Option(help="Answers wait while the bucket is further behind.")] = LAG_MAX_MS,
    off: Annotated[bool, typer.Option("--off", help="Follow it no more; what is in the bucket stays there.")] = False,
    data: Data = HERE,
    as_json: AsJson = False,
) -> None:
    """Follow a directory into a bucket, so that a lost disk undoes the last moments only; or show how far the bucket is behind.

    Answers wait for the directory's disk alone. The bucket has the directory as it was between two decisions of the ledger, at most
    --lag-max-ms ago: `perdure restore URL` brings that back, everywhere at once. The first start brings everything there, and serves when
    it is there.

    A directory that is served is followed as it was told when its supervisor began: stop it to change that.

    Examples:
        perdure replica s3://bucket/perdure
        perdure replica
        perdure replica --off
    """
    if place := bucket_of(data):
        raise BadRequest("dir", f"{place} is a bucket already: what is acknowledged is there")
    with served(data) as runtime:
        told = None if runtime is None else runtime.ask("ps", 0)["supervisor"].get("replica")
        if url is not None or off:
            if url is not None and off:
                raise BadRequest("off", "name a bucket, or say --off")
            if runtime is not None:
                raise BadRequest("replica", f"a supervisor serves {data}; `perdure stop` it first")
            if not data.is_dir():
                raise BadRequest("data", f"there is no directory {data}")
            wanted = checked_replica(url or "", lag_ms, lag_max_ms)
            if url:
                actors.check_bucket("replica", url)
            keep_replica(data, wanted)
    settings = replica_of(data)
    told = told or (settings._asdict() if settings is not None else None)
    if as_json:
        print(json_of({"replica": told}))
    elif told is None:
        print(f"{given_as(data)} is followed nowhere.")
    else:
        print(replica_words(told))


def replica_words(told: dict[str, Any]) -> str:
    """Where a directory is followed to, and how far that is behind, if a supervisor tells it."""
    if "behind_ms" not in told:
        return f"{told['url']}, at most {lasting(told['lag_max_ms'])} behind while it is served"
    if told["trouble"]:
        return f"{told['url']}, {lasting(told['behind_ms'])} behind: {told['trouble']}"
    if not told["filled"]:
        return f"{told['url']}, compared with the directory now; it may be further behind than {lasting(told['lag_max_ms'])}"
    return f"{told['url']}, {lasting(told['behind_ms'])} behind, at most {lasting(told['lag_max_ms'])}"
