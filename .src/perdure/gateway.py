"""How browsers and programs of other languages reach agents: one ASGI application, and who may do what."""

from __future__ import annotations

from perdure.actors.gateway.rate_limits import GatewayLimits
from perdure.actors.gateway.refusals import Forbidden, NoSuchAgent, Unauthenticated
from perdure.actors.gateway.registry import kebab
from perdure.actors.gateway.security import Principal, Scope, bearer
from perdure.actors.serve.app import Gateway

__all__ = [
    "Forbidden",
    "Gateway",
    "GatewayLimits",
    "NoSuchAgent",
    "Principal",
    "Scope",
    "Unauthenticated",
    "bearer",
    "kebab",
]
