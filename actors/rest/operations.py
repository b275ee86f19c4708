"""One table of operations, of which the routes and their description (OpenAPI) are made.

An operation says what it takes and what it answers by models; whatever does not fit them is refused before the operation is entered, with
the name of the field. So the description cannot say anything else than what is done.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, replace
from inspect import cleandoc
from types import MethodType
from typing import Any, Final, cast

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.actors.gateway.backend import Backend
from perdure.actors.gateway.bodies import body_of, read_json
from perdure.actors.gateway.plain_json import json_bytes
from perdure.actors.gateway.security import Principal, Scope
from perdure.ledger import BadRequest, of_json
from perdure.policies import JsonObject

JSON: Final = "application/json"


class Taken(BaseModel):
    """What a request says. Fields that nobody knows are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Nothing(Taken):
    """Nothing is said."""


@dataclass(frozen=True)
class ApiRequest:
    """A request that fits its operation: who asks, and what was said in the path, after the question mark and in the body."""

    request: Request
    who: Principal
    path: Any
    query: Any
    body: Any


Handler = Callable[..., Awaitable[object]]
_Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Operation:
    """One thing that can be asked. It decorates the method of `Handlers` that answers, whose docstring says what it is.

    Args:
        answer: the model of the answer; None for one of another kind, which the handler makes itself.
        media: the type of such an answer.
    """

    method: str
    path: str
    answer: type[BaseModel] | None = None
    _: KW_ONLY
    scope: Scope = Scope.READ
    of: type[Taken] = Nothing
    query: type[Taken] = Nothing
    body: type[Taken] | None = None
    media: str = JSON
    handler: Handler | None = None

    def __call__(self, handler: Handler) -> Operation:
        return replace(self, handler=handler)

    @property
    def name(self) -> str:
        return str(getattr(self.handler, "__name__", self.path)).strip("_")

    @property
    def summary(self) -> str:
        return cleandoc(self.handler.__doc__ or "")


class Handlers:
    """What operations are done by."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def table(self) -> list[Operation]:
        declared = [each for each in vars(type(self)).values() if isinstance(each, Operation)]
        return [each(MethodType(cast("Handler", each.handler), self)) for each in declared]


def routes_of(table: list[Operation], backend: Backend) -> list[BaseRoute]:
    """The routes of these operations: one for each path, so that who asks by another method is told all that there are."""
    by_path: dict[str, dict[str, _Endpoint]] = {}
    for each in table:
        path = re.sub(
            r"\{(run_id|ask_id|agent|address)\}", r"{\1:path}", each.path
        )  # such names may have slashes in them
        by_path.setdefault(path, {})[each.method] = _endpoint(each, backend)
    return [Route(path, _by_method(endpoints), methods=list(endpoints)) for path, endpoints in by_path.items()]


def _by_method(endpoints: dict[str, _Endpoint]) -> _Endpoint:
    async def answer(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return answer


def _endpoint(operation: Operation, backend: Backend) -> _Endpoint:
    handler = cast("Handler", operation.handler)

    async def answer(request: Request) -> Response:
        who = backend.principal(request, operation.scope)
        path = _fitting(operation.of, request.path_params)
        query = _fitting(operation.query, _query_of(request))
        body = None if operation.body is None else await _body_of(request, operation.body)
        told = await handler(ApiRequest(request, who, path, query, body))
        return told if isinstance(told, Response) else Response(json_bytes(told), media_type=JSON)

    return answer


def _query_of(request: Request) -> JsonObject:
    # A name that stands there twice has a list; a token is not for the operation.
    given = request.query_params
    names = dict.fromkeys(name for name in given if name != "token")
    return {name: values[0] if len(values := given.getlist(name)) == 1 else values for name in names}


async def _body_of(request: Request, model: type[Taken]) -> Taken:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:  # which a page elsewhere cannot send without being asked about it first
        raise BadRequest("content-type", f"{kind!r:.80} is not {JSON}")
    return _fitting(model, read_json(await body_of(request)))


def _fitting(model: type[Taken], given: object) -> Taken:
    try:
        return model.model_validate(given)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        field_name = ".".join(map(str, first["loc"])) or "body"
        raise BadRequest(field_name[:200], of_json(first["msg"])) from None
