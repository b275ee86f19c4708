"""What a class of agents or a tool asks of its hosts: checked, and as plain data, which travels with every request, alarm and call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, NamedTuple, Protocol

from perdure.ledger import BadRequest, check_bool, check_number, check_text, check_whole
from perdure.policies import ACCELERATOR, CPU, GPU, MEMORY, Json, JsonObject, is_label, is_label_expression

Checks = Mapping[str, Callable[[str, object], object]]
"""What raises `BadRequest` for a bad value of a class attribute, by the attribute."""

LEAST: Final = 0.0001  # Ray counts in ten-thousandths
SOME: Final = 0.001  # of an accelerator's type, as Ray itself asks for it
ELSEWHERE: Final = {
    CPU: "num_cpus",
    MEMORY: "memory",
    "object_store_memory": "memory",
}  # Ray takes none of these in `resources`


class Placed(Protocol):
    exclusive: ClassVar[bool]
    num_cpus: ClassVar[float]
    num_gpus: ClassVar[float]
    memory: ClassVar[float]
    accelerator_type: ClassVar[str | None]
    label_selector: ClassVar[dict[str, str]]
    resources: ClassVar[dict[str, float]]
    runtime_env: ClassVar[JsonObject]


class Placement(NamedTuple):
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    memory: float = 0
    accelerator_type: str | None = None
    label_selector: Mapping[str, str] = {}
    resources: Mapping[str, float] = {}
    runtime_env: Mapping[str, object] = {}
    exclusive: bool = False


def pool_spec(asked: type[Placed] | Placement, package: str = "") -> list[Json] | None:
    """What is asked, as plain data (`HostSpec`), or None for the default pool. A package stands beside its `runtime_env`."""
    environment = asked.runtime_env
    if package and isinstance(environment, dict):
        environment = {**environment, "package": package}
    resources = dict(asked.resources)
    if asked.num_gpus and GPU in resources:
        raise BadRequest("resources", "'GPU' is asked for by `num_gpus` already")
    # As Ray counts them, so that hosts, nodes and refusals know amounts of resources alone.
    resources |= {
        name: amount for name, amount in ((GPU, float(asked.num_gpus)), (MEMORY, int(asked.memory))) if amount
    }
    if asked.accelerator_type is not None:
        resources[f"{ACCELERATOR}{asked.accelerator_type}"] = SOME
    if not (asked.num_cpus or resources or environment or asked.exclusive or asked.label_selector):
        return None
    amounts: list[Json] = [[name, amount] for name, amount in sorted(resources.items())]
    spec: list[Json] = [asked.num_cpus, amounts, as_text(environment) if environment else "", asked.exclusive]
    labels: list[Json] = [[name, text] for name, text in sorted(asked.label_selector.items())]
    return [*spec, labels] if labels else spec


def as_text(environment: object) -> str:
    try:
        if isinstance(environment, dict):
            return json.dumps(environment, sort_keys=True)
    except (TypeError, ValueError) as problem:
        raise BadRequest("runtime_env", f"cannot be sent to Ray as JSON: {problem}") from None
    raise BadRequest("runtime_env", f"{environment!r} is not a mapping")


def _check_amount(field: str, value: object) -> float:
    amount = check_number(field, value, is_finite=True)
    if 0 < amount < LEAST:
        raise BadRequest(field, f"{value!r} is less than {LEAST:.4f}, the least that Ray counts")
    return amount


def _check_gpus(field: str, value: object) -> None:
    amount = _check_amount(field, value)
    if amount > 1 and amount != int(amount):
        raise BadRequest(
            field, f"{value!r} is a part of a GPU beside whole ones; Ray gives a part of one, or whole ones"
        )


def _check_memory(field: str, value: object) -> None:
    if isinstance(value, str):
        raise BadRequest(field, f"{value!r:.200} is text, not a number of bytes")
    check_whole(field, int(value) if isinstance(value, float) and value.is_integer() else value, least=0)


def _check_accelerator(field: str, value: object) -> None:
    if not check_text(field, value).strip():
        raise BadRequest(field, f"{value!r} names no type of accelerator")


def _check_resources(field: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise BadRequest(field, f"{value!r:.200} is no mapping of names to amounts")
    for name, amount in value.items():
        if not isinstance(name, str):
            raise BadRequest(field, f"{name!r:.200} is not the name of a resource")
        if name in ELSEWHERE:
            raise BadRequest(field, f"{name!r} is asked for by `{ELSEWHERE[name]}`")
        (_check_gpus if name == GPU else _check_amount)(f"{field}[{name!r}]", amount)


def _check_labels(field: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise BadRequest(field, f"{value!r:.200} is no mapping of labels to expressions")
    for name, expression in value.items():
        if not is_label(name):
            raise BadRequest(field, f"{name!r:.200} is not the name of a label")
        if not is_label_expression(expression):
            words = "is none of Ray's expressions: 'value', '!value', 'in(one, other)', '!in(one, other)'"
            raise BadRequest(f"{field}[{name!r}]", f"{expression!r:.200} {words}")


ASKED_OF_RAY: Final[Checks] = {
    "num_cpus": _check_amount,
    "num_gpus": _check_gpus,
    "memory": _check_memory,
    "accelerator_type": _check_accelerator,
    "label_selector": _check_labels,
    "resources": _check_resources,
    "runtime_env": lambda _, value: as_text(value),
}
PLACEMENT: Final[Checks] = {"exclusive": check_bool, **ASKED_OF_RAY}
