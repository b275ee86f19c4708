"""The input of a tool: a JSON schema for the model, and strict checking of what the model sends.

Both come from the function's signature. A parameter is described in its annotation (`Annotated[str, Field(description=…)]`) or in the
docstring, in any of the three usual styles. Both are made when they are first needed.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Literal, Unpack, cast, get_args, get_origin

from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema, core_schema

from perdure.actors.code.signatures import own_default
from perdure.actors.code.written import Written, written
from perdure.actors.life.asks import Answer, AskOptions
from perdure.actors.tasks import Pending
from perdure.ledger import BadRequest
from perdure.policies import JsonObject

_PROBLEMS_MAX = 5
_SPHINX = re.compile(r"^\s*:(param|parameter|arg|argument|key|keyword)\b", re.MULTILINE)
_NUMPY = re.compile(r"^\s*(Other )?Parameters\n\s*---", re.MULTILINE)
_JSON = (str, int, float, bool, type(None), list, dict)


class BadToolInput(BadRequest):
    """The model sent arguments that the tool does not take. Nothing was executed. The words are for the model."""


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """The call that a tool executes. A parameter annotated with this class is filled in, and hidden from the model.

    Attributes:
        call_id: the model's id of the call.
        run_id: the run that executes it.
        attempt: 1, 2, …; above 1 an earlier attempt died, and the tool's effect allows another.
        idempotency_key: the same in every attempt at this call, and unique otherwise.
        report_progress: as `RunContext.report_progress`.
        asked_to_stop: whether the call was told to stop; for sync code, which cannot be interrupted.
        approved: whether a person has allowed this very call.
        asks: asks people; see `ask`.
    """

    __perdure_context__: ClassVar = "ToolContext"

    call_id: str
    run_id: str
    attempt: int
    idempotency_key: str
    report_progress: Callable[..., object]
    asked_to_stop: Callable[[], bool] = bool
    approved: bool = False
    asks: Callable[..., object] | None = None

    def ask(self, question: str, schema: object = bool, **options: Unpack[AskOptions]) -> Pending[Answer]:
        """Ask people something, and wait for the answer, as `RunContext.ask`. Await it in async code.

        The time limit of the call stands still meanwhile. A tool with `effect="once"` waits in memory, and so does one with `inline=True`.
        Any other may be entered again when the answer has come.
        """
        if self.asks is None:
            raise BadRequest("context", "it was made by hand, so there is nobody to ask; a call has one that can ask")
        return cast("Pending[Answer]", self.asks(question, schema, **options))


class ToolInput:
    """The input of one tool."""

    def __init__(
        self, adapter: Callable[[], TypeAdapter[object]], names: tuple[str, ...], texts: Callable[[], dict[str, str]]
    ) -> None:
        self._make_adapter, self._names, self._texts = adapter, names, texts

    @cached_property
    def _adapter(self) -> TypeAdapter[object]:
        try:
            return self._make_adapter()
        except (PydanticUserError, TypeError, NameError) as problem:
            raise BadRequest("parameters", f"no schema can be made of them: {_first_line(problem)}") from problem

    @cached_property
    def schema(self) -> JsonObject:
        try:
            schema = self._adapter.json_schema(schema_generator=_WithoutTitles)
        except PydanticUserError as problem:
            raise BadRequest("parameters", f"a type among them has no JSON schema: {_first_line(problem)}") from problem
        return _object(schema, self._texts())

    def checked(self, given: object) -> Any:
        """The input in the types of the annotations. Raises `BadToolInput`, whose field is the first that is wrong.

        Strict: a number in quotes is no number, and unknown names are refused. Dates, enums, tuples and sets are read from their JSON.
        """
        try:
            return self._adapter.validate_json(json.dumps(given), strict=True)
        except ValidationError as problem:
            raise _refusal(problem) from problem

    def arguments(self, given: object) -> dict[str, object]:
        model = self.checked(given)
        fields = zip(self._names, type(model).model_fields, strict=True)
        values = [(name, getattr(model, field), field in model.model_fields_set) for name, field in fields]
        # What was not given is the function's own default, or a copy of one that the call could change for the next ones.
        return {name: value for name, value, is_given in values if is_given or own_default(value) is not value}

    def plain(self, given: object) -> Any:
        return self._adapter.dump_python(self.checked(given), mode="json", by_alias=True)


# Titles repeat the names of fields, and cost tokens in every request.
class _WithoutTitles(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: CoreSchema | core_schema.ModelField) -> bool:
        return False


def intake_of(function: Callable[..., object], agent_class: type | None = None, name: str = "") -> ToolInput:
    # The receiver of a method and a `ToolContext` are no input.
    of = written(function, agent_class, name, is_method=agent_class is not None)
    context = _context_in(of)
    parameters = {name: each for name, each in of.parameters.items() if name != context}
    for each in parameters.values():
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            raise BadRequest("parameters", f"{each} has no name to be filled in by")

    def adapter() -> TypeAdapter[object]:
        fields = {
            f"field_{at}": (of.hint(name), _field(name, each.default))
            for at, (name, each) in enumerate(parameters.items())
        }
        config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
        return TypeAdapter(create_model("Arguments", __config__=config, **fields))  # type: ignore[call-overload]

    return ToolInput(adapter, tuple(parameters), lambda: docstring_of(function)[1])


def _field(name: str, default: object) -> object:
    # An alias lets a parameter have any name. The model sees a default that JSON can write.
    if default is inspect.Parameter.empty:
        return Field(alias=name)
    return (
        Field(default, alias=name)
        if _is_json(default)
        else Field(default_factory=lambda: own_default(default), alias=name)
    )


def _is_json(value: object) -> bool:
    if not isinstance(value, _JSON):
        return False
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def context_name(function: Callable[..., object]) -> str | None:
    return _context_in(written(function, is_method=False))


def _context_in(of: Written) -> str | None:
    return next((name for name in of.parameters if of.takes_context(name, ToolContext.__name__)), None)


def docstring_of(function: Callable[..., object]) -> tuple[str, dict[str, str]]:
    # What the docstring says of the function, and of each parameter.
    text = inspect.getdoc(function)
    if not text:
        return "", {}
    import griffe  # noqa: PLC0415 - read only where a schema is made; it is not cheap to load

    style: Literal["sphinx", "numpy", "google"] = "google"
    if _SPHINX.search(text) or _NUMPY.search(text):
        style = "sphinx" if _SPHINX.search(text) else "numpy"
    sections = griffe.parse(griffe.Docstring(text, lineno=1), style, warnings=False)
    said = next((section.value for section in sections if section.kind is griffe.DocstringSectionKind.text), "")
    described: dict[str, str] = {}
    for section in sections:
        if isinstance(section, griffe.DocstringSectionParameters):
            described.update({each.name.lstrip("*"): each.description.strip() for each in section.value})
    return said.strip(), described


def intake_of_type(annotation: object, *, wrapped_as: str | None) -> ToolInput:
    # A type that is no object in JSON becomes one, under the name `wrapped_as`.
    if wrapped_as is None:
        return ToolInput(lambda: _plainly(annotation), (), dict)
    fields: dict[str, object] = {"field_0": (annotation, Field(alias=wrapped_as))}
    model = partial(create_model, "Arguments", __config__=ConfigDict(extra="forbid"), **fields)
    return ToolInput(lambda: TypeAdapter(model()), (wrapped_as,), dict)


def intake_of_schema(schema: JsonObject) -> ToolInput:
    # What the model sends is not checked against this schema.
    intake = intake_of_type(dict[str, Any], wrapped_as=None)
    intake.schema = {"properties": {}, **schema, "type": "object"}
    return intake


def is_object(annotation: object) -> bool:
    if annotation is Any:
        return False
    try:
        schema = _plainly(annotation).json_schema()
    except (PydanticUserError, NameError) as problem:
        raise BadRequest("input", f"{annotation!r:.200} has no JSON schema: {_first_line(problem)}") from problem
    return bool(_at_top(schema).get("type") == "object")


def _plainly(annotation: Any) -> TypeAdapter[object]:
    inner = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return TypeAdapter(dict[str, Any] if inner is dict else annotation)


def _object(schema: JsonObject, texts: dict[str, str]) -> JsonObject:
    top = {name: value for name, value in _at_top(schema).items() if name != "title"}
    known = cast("dict[str, JsonObject]", top.get("properties", {}))
    properties = {name: {"description": texts[name], **each} if name in texts else each for name, each in known.items()}
    return {**top, "type": "object", "properties": properties}


def _at_top(schema: JsonObject) -> JsonObject:
    # Recursive types have a reference at the top.
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    definitions = cast("dict[str, JsonObject]", schema.get("$defs", {}))
    return {**definitions[name], "$defs": dict(definitions)} if name in definitions else schema


def _refusal(problem: ValidationError) -> BadToolInput:
    # Several problems are told at once, so that the model can correct all of them.
    errors = problem.errors(include_url=False)
    places = [".".join(str(step) for step in each["loc"]) or "input" for each in errors]
    told = [f"{place}: {each['msg']}" for place, each in zip(places, errors, strict=True)][:_PROBLEMS_MAX]
    more = f" (and {len(errors) - _PROBLEMS_MAX} more)" if len(errors) > _PROBLEMS_MAX else ""
    return BadToolInput(places[0], "; ".join([errors[0]["msg"], *told[1:]]) + more)


def _first_line(problem: Exception) -> str:
    return str(problem).strip().partition("\n")[0]
