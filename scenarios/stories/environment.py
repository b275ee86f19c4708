"""The environment of a scenario's processes. It names the model, because a child knows only its input."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from perdure.actors import close_models, resolve_model
from perdure.ledger import BadRequest

MODEL: Final = "PERDURE_SCENARIO_MODEL"
SCRIPTED: Final = "openai-chat:scripted"
SIMULATED: Final = "simulated"

_simulated_models: dict[str, Any] = {}


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


@contextlib.contextmanager
def simulated_model(model: Any) -> Iterator[None]:
    """Let the name `simulated` mean this model meanwhile. Only the simulated world can pass an object."""
    _simulated_models[SIMULATED] = model
    try:
        yield
    finally:
        del _simulated_models[SIMULATED]


def model_here() -> Any:
    """The model that the environment names. Raises `BadRequest` if it names none."""
    name = os.environ.get(MODEL)
    if not name:
        raise BadRequest("model", f"{MODEL} is not set in the environment of this process")
    return _simulated_models.get(name, name)


def checked_model(name: str) -> str:
    """The name, if the model can be used here. Raises `BadRequest`, which names a missing variable."""

    async def look() -> None:
        resolve_model(name)
        await close_models()

    asyncio.run(look())
    return name
