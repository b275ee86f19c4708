"""The durable names of our own agents and tools are short and complete."""

from __future__ import annotations

import importlib
import pkgutil
from types import FunctionType

from perdure import Agent, actors, scenarios
from perdure.actors.chat.tools import options_of
from perdure.actors.code.naming import load_type, type_name
from perdure.actors.code.permanent_names import PLACES
from tests.actors.cast import Doubler

ABSTRACT = {"Agent", "ChatAgent", "DurableAgent", "MessengerAgent"}  # what authors subclass is never asked for itself

# of the systems that the bench compares us with, where these are installed
PROGRAMS_OF_PEERS = (".dbos_children", ".restate_children")


def our_agents() -> list[type[Agent]]:
    for package in (actors, scenarios):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(PROGRAMS_OF_PEERS):
                importlib.import_module(module.name)
    found = [Agent]
    for cls in found:
        found += [each for each in cls.__subclasses__() if each not in found]
    return [cls for cls in found if cls.__module__.startswith("perdure.") and cls.__name__ not in ABSTRACT]


def test_every_agent_of_ours_has_a_permanent_name_and_is_found_by_it() -> None:
    names = {cls: type_name(cls) for cls in our_agents()}
    assert {name.partition(":")[0] for name in names.values()} <= set(PLACES)
    assert {name: load_type(name) for name in names.values()} == {name: cls for cls, name in names.items()}


def test_every_permanent_name_means_a_module_with_agents_or_tools() -> None:
    homes = {cls.__module__ for cls in our_agents()}
    for name, module in PLACES.items():
        things = vars(importlib.import_module(module)).values()
        tools = [each for each in things if isinstance(each, FunctionType) and options_of(each) is not None]
        assert tools or module in homes, name


def test_names_of_authors_are_those_of_their_modules() -> None:
    assert type_name(Doubler) == "tests.actors.cast:Doubler"


def test_no_two_names_mean_the_same_module() -> None:
    assert len(set(PLACES.values())) == len(PLACES)
