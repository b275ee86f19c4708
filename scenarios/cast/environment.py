"""The environment of the agents' processes. It names the model and Telegram, because a child knows only its input. In the simulated world
the names mean objects of this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from perdure import BadRequest
from perdure.actors import close_models, resolve_model

MODEL: Final = "PERDURE_SCENARIO_MODEL"
SCRIPTED: Final = "openai-chat:scripted"
SIMULATED: Final = "simulated"


OUTSIDES: Final[list[Any]] = []
"""Each `Outside` that is played with, the innermost last. Its class is not named here: its module brings libraries that a host of a real
Ray does without."""


def outside() -> Any:
    return OUTSIDES[-1]


@contextlib.contextmanager
def with_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set these variables meanwhile. Processes that are started meanwhile inherit them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def model_here() -> Any:
    """The model that the environment names. Raises `BadRequest` if it names none."""
    name = os.environ.get(MODEL)
    if not name:
        raise BadRequest("model", f"{MODEL} is not set in the environment of this process")
    return outside().model if name == SIMULATED else name


def checked_model(name: str) -> str:
    """The name, if the model can be used here. Raises `BadRequest`, which names a missing variable."""

    async def look() -> None:
        resolve_model(name)
        await close_models()

    asyncio.run(look())
    return name
