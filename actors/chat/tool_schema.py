"""What a tool takes: a JSON schema that the model reads, and strict checking of what the model then sends.

Both come from the function's signature. A description of a parameter stands in its annotation (`Annotated[str, Field(description=…)]`)
or in the docstring, in any of the three usual styles. Nothing is made before it is needed: a host that only runs a tool never
builds its schema.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema, core_schema

from perdure.ledger import BadRequest
from perdure.policies import JsonObject

_PROBLEMS_MAX = 5
_SPHINX = re.compile(r"^\s*:(param|parameter|arg|argument|key|keyword)\b", re.MULTILINE)
_NUMPY = re.compile(r"^\s*(Other )?Parameters\n\s*---", re.MULTILINE)
_JSON = (str, int, float, bool, type(None), list, dict)


class BadToolInput(BadRequest):
    """The model sent arguments that the tool does not take. Nothing was executed; the words are for the model, which may try again."""


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """What a tool may ask of the call that it answers. A parameter annotated with this class is filled in; the model never sees it.

    Attributes:
        call_id: the model's id of the call.
        run_id: the run that executes it.
        attempt: 1, 2, …; above 1 an earlier attempt died, which only happens to tools that say it may.
        idempotency_key: the same in every attempt at this call, and no other call's; for services that take one.
        report_progress: as `RunContext.report_progress`.
        asked_to_stop: whether the call was told to stop; for sync code, which cannot be interrupted.
    """

    call_id: str
    run_id: str
    attempt: int
    idempotency_key: str
    report_progress: Callable[..., object]
    asked_to_stop: Callable[[], bool] = bool


class Intake:
    """What one tool takes. `arguments` gives what its function is called with; `plain` gives the same as plain data."""

    def __init__(
        self, adapter: Callable[[], TypeAdapter[Any]], names: tuple[str, ...], texts: Callable[[], dict[str, str]]
    ) -> None:
        self._make_adapter, self._names, self._texts = adapter, names, texts

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        try:
            return self._make_adapter()
        except (PydanticUserError, TypeError, NameError) as problem:
            raise BadRequest("parameters", f"no schema can be made of them: {_first_line(problem)}") from problem

    @cached_property
    def schema(self) -> JsonObject:
        """The JSON schema, whose type is always `object`. Raises `BadRequest` when a type has none."""
        try:
            schema = self._adapter.json_schema(schema_generator=_WithoutTitles)
        except PydanticUserError as problem:
            raise BadRequest("parameters", f"a type among them has no JSON schema: {_first_line(problem)}") from problem
        return _object(schema, self._texts())

    def checked(self, given: object) -> Any:
        """What was given, as the types that the author asked for. Raises `BadToolInput`, whose field is the first that is wrong.

        Strict: a number in quotes is no number, and a name that the tool does not know is refused. What JSON has no type for
        (dates, enums, tuples, sets) is read from what JSON writes for it.
        """
        try:
            return self._adapter.validate_json(json.dumps(given), strict=True)
        except ValidationError as problem:
            raise _refusal(problem) from problem

    def arguments(self, given: object) -> dict[str, object]:
        """By the names of the function's parameters; only those that were given, so that the function's own defaults hold."""
        model = self.checked(given)
        fields = type(model).model_fields
        return {
            name: getattr(model, field)
            for name, field in zip(self._names, fields, strict=True)
            if field in model.model_fields_set
        }

    def plain(self, given: object) -> Any:
        """Checked, and as plain data again."""
        return self._adapter.dump_python(self.checked(given), mode="json", by_alias=True)


class _WithoutTitles(GenerateJsonSchema):
    """A title for each field would only repeat its name, and the model pays for it in every request."""

    def field_title_should_be_set(self, schema: CoreSchema | core_schema.ModelField) -> bool:
        return False


# --- from functions --------------------------------------------------------------------------------------------------


def intake_of(function: Callable[..., object]) -> Intake:
    """What a function takes; the receiver of a bound method and a `ToolContext` are left out."""
    context = context_name(function)
    parameters = {name: each for name, each in inspect.signature(function).parameters.items() if name != context}
    for each in parameters.values():
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            raise BadRequest("parameters", f"{each} cannot be filled in by name; give each parameter of a tool a name")

    def adapter() -> TypeAdapter[Any]:
        hints = get_type_hints(function, include_extras=True)
        fields = {
            f"field_{at}": (hints.get(name, Any), _field(name, each.default))
            for at, (name, each) in enumerate(parameters.items())
        }
        config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
        return TypeAdapter(create_model("Arguments", __config__=config, **fields))  # type: ignore[call-overload]

    return Intake(adapter, tuple(parameters), lambda: docstring_of(function)[1])


def _field(name: str, default: object) -> Any:
    """Known by an alias, so that a parameter may bear any name. A default is shown to the model where JSON can write it."""
    if default is inspect.Parameter.empty:
        return Field(alias=name)
    return Field(default, alias=name) if _is_json(default) else Field(default_factory=lambda: default, alias=name)


def _is_json(value: object) -> bool:
    if not isinstance(value, _JSON):
        return False
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def context_name(function: Callable[..., object]) -> str | None:
    """The parameter that wants the `ToolContext`, if there is one."""
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):
        hints = getattr(function, "__annotations__", {})
    return next((name for name, hint in hints.items() if name != "return" and _is_context(hint)), None)


def _is_context(hint: object) -> bool:
    if isinstance(hint, str):
        return hint.replace(" ", "").removesuffix("|None").rpartition(".")[2] == ToolContext.__name__
    return hint is ToolContext or ToolContext in get_args(hint)


def docstring_of(function: Callable[..., object]) -> tuple[str, dict[str, str]]:
    """What a docstring says of a function, and of each of its parameters."""
    text = inspect.getdoc(function)
    if not text:
        return "", {}
    import griffe  # noqa: PLC0415 - read only where a schema is made; it is not cheap to load

    docstring = griffe.Docstring(text, lineno=1)
    if _SPHINX.search(text):
        sections = griffe.parse_sphinx(docstring, warnings=False)
    elif _NUMPY.search(text):
        sections = griffe.parse_numpy(docstring, warnings=False)
    else:
        sections = griffe.parse_google(docstring, warnings=False)
    said = next((section.value for section in sections if section.kind is griffe.DocstringSectionKind.text), "")
    described: dict[str, str] = {}
    for section in sections:
        if isinstance(section, griffe.DocstringSectionParameters):
            described.update({each.name.lstrip("*"): each.description.strip() for each in section.value})
    return said.strip(), described


# --- from types ------------------------------------------------------------------------------------------------------


def intake_of_type(annotation: Any, *, wrapped_as: str | None, description: str = "") -> Intake:
    """What a child agent takes. A type that is no object for JSON is put into one, under the name `wrapped_as`."""
    if wrapped_as is None:
        return Intake(lambda: _plainly(annotation), (), dict)
    field = Field(alias=wrapped_as, description=description or None)
    config = ConfigDict(extra="forbid")
    return Intake(
        lambda: TypeAdapter(create_model("Arguments", __config__=config, field_0=(annotation, field))),
        (wrapped_as,),
        dict,
    )


def is_object(annotation: Any) -> bool:
    """Whether JSON writes values of this type as objects."""
    if annotation is Any:
        return False
    try:
        schema = _plainly(annotation).json_schema()
    except (PydanticUserError, NameError) as problem:
        raise BadRequest("input", f"{annotation!r:.200} has no JSON schema: {_first_line(problem)}") from problem
    return bool(_at_top(schema).get("type") == "object")


def _plainly(annotation: Any) -> TypeAdapter[Any]:
    inner = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return TypeAdapter(dict[str, Any] if inner is dict else annotation)


# --- schemas ---------------------------------------------------------------------------------------------------------


def _object(schema: JsonObject, texts: dict[str, str]) -> JsonObject:
    """The schema as providers want it: an object at the top, with what the docstring says of each property."""
    top = {name: value for name, value in _at_top(schema).items() if name != "title"}
    known = cast("dict[str, JsonObject]", top.get("properties", {}))
    properties = {name: {"description": texts[name], **each} if name in texts else each for name, each in known.items()}
    return {**top, "type": "object", "properties": properties}


def _at_top(schema: JsonObject) -> JsonObject:
    """A recursive type stands among the definitions, and a reference to it at the top."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    definitions = cast("dict[str, JsonObject]", schema.get("$defs", {}))
    return {**definitions[name], "$defs": dict(definitions)} if name in definitions else schema


# --- words -----------------------------------------------------------------------------------------------------------


def _refusal(problem: ValidationError) -> BadToolInput:
    """Every problem, up to a handful, so that the model can mend all of them at once."""
    errors = problem.errors(include_url=False)
    places = [".".join(str(step) for step in each["loc"]) or "input" for each in errors]
    told = [f"{place}: {each['msg']}" for place, each in zip(places, errors, strict=True)][:_PROBLEMS_MAX]
    more = f" (and {len(errors) - _PROBLEMS_MAX} more)" if len(errors) > _PROBLEMS_MAX else ""
    return BadToolInput(places[0], "; ".join([errors[0]["msg"], *told[1:]]) + more)


def _first_line(problem: Exception) -> str:
    return str(problem).strip().partition("\n")[0]
