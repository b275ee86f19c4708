"""An author's say in an agent's `state`: a change can be refused before it is written, and is told of when it is durable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.author import tried
from ledger.storage import State

if TYPE_CHECKING:
    from actors.tenant import Tenant


class StateWatch:
    """Asks and tells one life of an agent about its state."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._telling = False

    def begin(self, state: State) -> None:
        """From now on, as far as the author has the hooks."""
        tenant = self._tenant
        validate = tenant.agent.validate_state if tenant.overrides("validate_state") else None
        state.watch(validate, self._changed if tenant.overrides("on_state_changed") else None)

    def _changed(self) -> None:
        self._tenant.on_loop(self._soon)

    def _soon(self) -> None:
        """Changes of one turn of the loop are told as one."""
        if not self._telling and not self._tenant.is_leaving:
            self._telling = True
            self._tenant.spawn(self._tell())

    async def _tell(self) -> None:
        """Tell the author's hook; what it raises changes nothing."""
        self._telling = False
        tenant = self._tenant
        _, problem = await tried(tenant.call(tenant.agent.on_state_changed, dict(tenant.storage.state)))
        if problem is not None:
            tenant.trouble("on_state_changed", problem)
