"""The description of the operations (OpenAPI 3.1), made of the table by which they are done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Literal

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaValue, models_json_schema

from perdure.actors.rest.table import JSON, Nothing, Operation

REFUSED: Final = {
    400: "What was said does not fit; `field` says where.",
    401: "Nobody knows who asks.",
    403: "Who asks may not do this.",
    404: "There is nothing of this name.",
    408: "The body did not arrive in time.",
    409: "It does not fit to what is there.",
    413: "It is too large.",
    422: "The author's code raised.",
    429: "Too much at once; ask again later.",
    502: "Nobody knows whether it took effect: the host died meanwhile.",
    503: "What is needed cannot be reached at the moment.",
}
_ALWAYS: Final = (400, 401, 403, 429, 503)
_OF_BODIES: Final = (408, 409, 413, 422, 502)
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
                "args": {"type": "array", "description": "What the error is made of."},
            },
        }
    },
}


def described(table: Sequence[Operation]) -> dict[str, object]:
    """The description."""
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
    summary, _, more = each.summary.partition("\n")
    parameters = [*_parameters(each.of, "path", schemas, known), *_parameters(each.query, "query", schemas, known)]
    if each.media != JSON:
        schema = {"type": "integer", "minimum": -1, "maximum": 2**53 - 1}
        parameters.append({"name": "Last-Event-ID", "in": "header", "schema": schema})
    refused = {JSON: {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    told: dict[str, object] = {
        "operationId": each.name,
        "summary": summary,
        "description": more.strip() or summary,
        "x-scope": str(each.scope),
        "parameters": parameters,
        "responses": {
            "200": {
                "description": summary,
                "content": {
                    each.media: {"schema": {"type": "string"} if each.answer is None else schemas[each.answer]}
                },
            },
            **{str(status): {"description": REFUSED[status], "content": refused} for status in _refusals(each)},
        },
    }
    if each.body is not None:
        told["requestBody"] = {"required": True, "content": {JSON: {"schema": schemas[each.body]}}}
    return told


def _refusals(each: Operation) -> list[int]:
    found = {*_ALWAYS, *(() if each.method == "GET" else _OF_BODIES)}
    return sorted(found | ({404} if each.of is not Nothing else set()))


def _parameters(
    model: type[BaseModel], place: str, schemas: Mapping[object, JsonSchemaValue], known: JsonSchemaValue
) -> Iterator[dict[str, object]]:
    schema = known[str(schemas[model]["$ref"]).rpartition("/")[2]]
    required = schema.get("required", ())
    for name, each in schema.get("properties", {}).items():
        yield {"name": name, "in": place, "required": place == "path" or name in required, "schema": _given(each)}


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
