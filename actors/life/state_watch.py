"""An author's say in an agent's `state`: a change can be refused before it is written, and is told of when it is durable."""

from __future__ import annotations

from perdure.actors.code.author_call import tried
from perdure.actors.life.life import Life
from perdure.ledger.storage.cabinet import State


class StateWatch:
    """Asks and tells one life of an agent about its state."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._telling = False

    def begin(self, state: State) -> None:
        """From now on, as far as the author has the hooks."""
        life = self._life
        validate = life.agent.validate_state if life.overrides("validate_state") else None
        state.watch(validate, self._changed if life.overrides("on_state_changed") else None)

    def _changed(self) -> None:
        self._life.on_loop(self._soon)

    def _soon(self) -> None:
        """Changes of one turn of the loop are told as one."""
        if not self._telling and not self._life.is_leaving:
            self._telling = True
            self._life.spawn(self._tell())

    async def _tell(self) -> None:
        """Tell the author's hook; what it raises changes nothing."""
        self._telling = False
        life = self._life
        _, problem = await tried(life.call(life.agent.on_state_changed, dict(life.storage.state)))
        if problem is not None:
            life.trouble("on_state_changed", problem)
