"""One table of operations, of which the routes and their description (OpenAPI) are made.

An operation says what it takes and what it answers by models; whatever does not fit them is refused before the operation is entered, with
the name of the field. So the description cannot say anything else than what is done.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from inspect import cleandoc
from types import MethodType
from typing import Annotated, Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.json_schema import JsonSchemaValue, models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from perdure.actors.gateway.backend import Backend, RouteOfIds
from perdure.actors.gateway.bodies import body_of, read_json
from perdure.actors.gateway.plain_json import json_bytes
from perdure.actors.gateway.security import Principal, Scope
from perdure.ledger import BadRequest, of_json

JSON: Final = "application/json"
Id = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class Taken(BaseModel):
    """What a request says. Fields that nobody knows are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Nothing(Taken):
    """Nothing is said."""


class OfRun(Taken):
    """The run in the path."""

    run_id: Annotated[Id, Field(description="The id of the run.")]


class OfAsk(Taken):
    """The question in the path."""

    ask_id: Annotated[Id, Field(description="The id of the question, as the list of questions has it.")]


class OfAgent(Taken):
    """The agent in the path."""

    agent: Annotated[Id, Field(description="The agent, as `name@module:Class`.")]


class OfSchedule(OfAgent):
    """The schedule in the path."""

    schedule: Annotated[Id, Field(description="The key or the id of a schedule or of a queued item.")]


Place = Annotated[
    Id,
    Field(
        description="`class/name` as behind `/agents/`, with the class in kebab case, and `/sub/class/name` for each step to a sub-agent.",
        examples=["counter/one", "counter/one/sub/shard/two"],
    ),
]


class OfMethod(Taken):
    """An exposed method of the agent at an address."""

    address: Place
    method: Annotated[Id, Field(description="The name of a method that is exposed.")]


class OfChat(Taken):
    """The chat agent at an address."""

    address: Place


OF_PATHS: Final = {
    (*each.model_fields,): each for each in (Nothing, OfRun, OfAsk, OfAgent, OfSchedule, OfMethod, OfChat)
}
"""What is said in a path, by the names that stand there."""


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


def names_in(path: str) -> list[str]:
    return re.findall(r"{(\w+)}", path)


@dataclass(frozen=True)
class Operation:
    """One thing that can be asked. It decorates the method of `Handlers` that answers, whose docstring says what it is.

    Args:
        answer: the model of the answer; None for one of another kind, which the handler makes itself.
        media: the type of such an answer.
        path_model: what is said in the path, if that is none of `OF_PATHS`.
        tells_of_agents: whether one that reads, and is about no single one, tells of all agents; then it does so to operators alone.
    """

    method: str
    path: str
    answer: type[BaseModel] | None = None
    _: KW_ONLY
    scope: Scope = Scope.READ
    path_model: type[Taken] | None = None
    query: type[Taken] = Nothing
    body: type[Taken] | None = None
    media: str = JSON
    tells_of_agents: bool = True
    handler: Handler | None = None

    @property
    def of(self) -> type[Taken]:
        return self.path_model or OF_PATHS[(*names_in(self.path),)]

    def __call__(self, handler: Handler) -> Operation:
        return replace(self, handler=handler)


class Handlers:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def table(self) -> list[Operation]:
        declared = [each for each in vars(type(self)).values() if isinstance(each, Operation)]
        return [each(MethodType(cast("Handler", each.handler), self)) for each in declared]


def routes_of(table: list[Operation], backend: Backend) -> list[BaseRoute]:
    # A path has one route, so that who asks by another method is told all that there are.
    by_path: dict[str, dict[str, _Endpoint]] = {}
    for each in table:
        path = re.sub(
            r"\{(run_id|ask_id|agent|schedule|address)\}", r"{\1:path}", each.path
        )  # such names may have slashes in them
        by_path.setdefault(path, {})[each.method] = _endpoint(each, backend)
    return [RouteOfIds(path, _by_method(endpoints), methods=list(endpoints)) for path, endpoints in by_path.items()]


def _by_method(endpoints: dict[str, _Endpoint]) -> _Endpoint:
    async def answer(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return answer


def _endpoint(operation: Operation, backend: Backend) -> _Endpoint:
    handler, of = cast("Handler", operation.handler), operation.of

    async def answer(request: Request) -> Response:
        who = backend.principal(request, operation.scope)
        path = _fitting(of, request.path_params)
        # A name that stands there twice has a list; a token is not for the operation.
        said = request.query_params
        names = dict.fromkeys(name for name in said if name != "token")
        given = {name: values[0] if len(values := said.getlist(name)) == 1 else values for name in names}
        query, body = _fitting(operation.query, given), None
        if operation.body is not None:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != JSON:  # which a page elsewhere cannot send without being asked about it first
                raise BadRequest("content-type", f"{kind!r:.80} is not {JSON}")
            body = _fitting(operation.body, read_json(await body_of(request)))
        await _check_told(operation, backend, who, path)
        told = await handler(ApiRequest(request, who, path, query, body))
        return told if isinstance(told, Response) else Response(json_bytes(told), media_type=JSON)

    return answer


async def _check_told(operation: Operation, backend: Backend, who: Principal, path: Any) -> None:
    # Where an agent is reached by its class and name (`address`), that asks the author's hook by itself.
    if "{agent}" in operation.path:
        await backend.check_agent(who, path.agent)
    elif "{run_id}" in operation.path:
        await backend.check_run(who, path.run_id)
    elif "{ask_id}" in operation.path:
        await backend.check_ask(who, path.ask_id)
    elif operation.scope is Scope.READ and operation.tells_of_agents:
        backend.check_all(who)


def _fitting(model: type[Taken], given: object) -> Taken:
    try:
        return model.model_validate(given)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        field_name = ".".join(map(str, first["loc"])) or "body"
        raise BadRequest(field_name[:200], of_json(first["msg"])) from None


# ---------------------------------------------------------------- description


REFUSED: Final = {
    400: "What was said does not fit; `field` says where.",
    401: "Nobody knows who asks.",
    403: "Who asks may not do this.",
    404: "There is nothing of this name.",
    408: "The body did not arrive in time.",
    409: "It does not fit to what is there.",
    413: "It is too large.",
    415: "The body is encoded.",
    422: "The author's code raised.",
    429: "Too much at once; ask again later.",
    502: "Nobody knows whether it took effect: the host died meanwhile.",
    503: "What is needed cannot be reached at the moment.",
}
_ALWAYS: Final = (400, 401, 403, 429, 503)
SENTENCE_END: Final = re.compile(r"(?<=[.?!])\s+|\n\n+")
_OF_BODIES: Final = (408, 409, 413, 415, 422, 502)
ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {
                "type": {"type": "string", "description": "The class of the error, as in `perdure`."},
                "message": {"type": "string"},
                "field": {"type": "string"},
                "args": {"type": "array", "items": {}, "description": "What the error is made of."},
            },
        }
    },
}


def described(table: Sequence[Operation]) -> dict[str, object]:
    """The description of the operations (OpenAPI 3.1)."""
    answers = [each.answer for each in table if each.answer is not None]
    wishes = [model for each in table for model in (each.of, each.query, each.body) if model is not None]
    wanted: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = [
        *((model, "serialization") for model in dict.fromkeys(answers) if model not in wishes),
        *((model, "validation") for model in dict.fromkeys(wishes)),
    ]
    places, definitions = models_json_schema(wanted, ref_template="#/components/schemas/{model}")
    schemas: dict[object, JsonSchemaValue] = {model: schema for (model, _), schema in places.items()}
    paths: dict[str, dict[str, object]] = {}
    known = definitions.get("$defs", {})
    for each in table:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schemas, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Perdure", "version": _version(), "description": "Durable agents and their runs."},
        "paths": paths,
        "components": {
            "schemas": {**known, "Refusal": ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(each: Operation, schemas: Mapping[object, JsonSchemaValue], known: JsonSchemaValue) -> dict[str, object]:
    handler = cast("Handler", each.handler)
    summary, more = _summed_up(cleandoc(handler.__doc__ or ""))
    parameters = [*_parameters(each.of, "path", schemas, known), *_parameters(each.query, "query", schemas, known)]
    if each.media != JSON:
        schema = {"type": "integer", "minimum": -1, "maximum": 2**53 - 1}
        parameters.append({"name": "Last-Event-ID", "in": "header", "schema": schema})
    refused = {JSON: {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    statuses = {*_ALWAYS, *(() if each.method == "GET" else _OF_BODIES), *(() if each.of is Nothing else (404,))}
    told: dict[str, object] = {
        "operationId": handler.__name__,
        "summary": summary,
        "description": more or summary,
        "x-scope": str(each.scope),
        "parameters": parameters,
        "responses": {
            "200": {
                "description": summary,
                "content": {
                    each.media: {"schema": {"type": "string"} if each.answer is None else schemas[each.answer]}
                },
            },
            **{str(status): {"description": REFUSED[status], "content": refused} for status in sorted(statuses)},
        },
    }
    if each.body is not None:
        told["requestBody"] = {"required": True, "content": {JSON: {"schema": schemas[each.body]}}}
    return told


# The first sentence, which may go on over the end of a line, and what follows it.
def _summed_up(text: str) -> tuple[str, str]:
    end = SENTENCE_END.search(text)
    first, more = (text, "") if end is None else (text[: end.start()], text[end.end() :])
    return " ".join(first.split()), more


def _parameters(
    model: type[BaseModel], place: str, schemas: Mapping[object, JsonSchemaValue], known: JsonSchemaValue
) -> Iterator[dict[str, object]]:
    schema = known[str(schemas[model]["$ref"]).rpartition("/")[2]]
    required = schema.get("required", ())
    for name, each in schema.get("properties", {}).items():
        about = {"description": each["description"]} if "description" in each else {}
        is_required = place == "path" or name in required
        yield {"name": name, "in": place, **about, "required": is_required, "schema": _given(each)}


def _given(schema: JsonSchemaValue) -> JsonSchemaValue:
    # A parameter is there or not: null is not one of its values.
    choices = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default", "title")}
    return {**choices[0], **rest} if len(choices) == 1 else schema


def _version() -> str:
    try:
        return version("perdure")
    except PackageNotFoundError:
        return "0"
