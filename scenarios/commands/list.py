"""`perdure list`."""

from __future__ import annotations

import json

from perdure.scenarios.commands.catalog import CATALOG
from perdure.scenarios.commands.options import AsJson


def list_scenarios(as_json: AsJson = False) -> None:
    """Name the scenarios that `perdure run` can play, each with a sentence and an example.

    Examples:
        perdure list

        perdure list --json
    """
    if as_json:
        print(json.dumps([{"name": each.name, "sentence": each.sentence, "example": each.example} for each in CATALOG]))
        return
    for scenario in CATALOG:
        print(f"{scenario.name:17}{scenario.sentence}\n{'':17}{scenario.example}\n")
