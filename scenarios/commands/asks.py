"""The commands on questions to people: `asks` lists them, and `answer` answers one."""

from __future__ import annotations

import json
import shlex
import time
from typing import Annotated, Any

import typer

from perdure import actors
from perdure.ledger import AskClosed, BadRequest, check_id, lasting
from perdure.scenarios.commands.opening import opened
from perdure.scenarios.commands.options import HERE, AsJson, Data
from perdure.scenarios.commands.shown import instant, json_of, print_pairs, print_table, shortened
from perdure.scenarios.live_view import plural

YES, NO = ("yes", "y", "true"), ("no", "n", "false")


def asks(
    to: Annotated[str | None, typer.Option(help="Only questions that have come to this group or person.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Closed ones too, of runs that are live or have ended lately.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Number of questions.")] = 1_000,
    data: Data = HERE,
    as_json: AsJson = False,
) -> None:
    """List the questions to people, those that wait for longest first: of runs, and about calls of chats that wait.

    Examples:
        perdure asks
        perdure asks --to ops
    """
    with opened(data) as ledger:
        found: list[dict[str, Any]] = ledger.ask("asks", to, everything, limit + 1)
    is_cut, found = len(found) > limit, found[:limit]
    if as_json:
        print(json_of(found))
        return
    now_ms = time.time_ns() / 1_000_000
    titles = ("question", "asks", "for", "of", "since", "until", *(("stands",) if everything else ()))
    cells = [
        (
            each["ask_id"],
            shortened(each["question"]),
            shortened(_wanted(each["schema"])),
            " or ".join(each["to"]) or "anybody",
            lasting(max(0, now_ms - each["opened_at_ms"])),
            instant(each["expires_at_ms"]) if each["expires_at_ms"] else "",
            *((each["status"],) if everything else ()),
        )
        for each in found
    ]
    print_table(titles, cells)
    if is_cut:
        print(
            f"\nThere are more than these {limit:,}; `--limit` lists more of them, and `--to` those of a group or person."
        )
    if found:
        print(f"\n`perdure answer {shlex.quote(found[0]['ask_id'])} VALUE` answers the first of them.")
    else:
        print("Nobody asks anything.")


def _wanted(schema: dict[str, Any]) -> str:
    if schema.get("type") == "boolean":
        return "yes or no"
    if "enum" in schema or "const" in schema:
        return " or ".join(map(str, schema.get("enum", [schema.get("const")])))
    return str(schema.get("title") or schema.get("type") or "JSON")


def answer(
    ask: Annotated[str, typer.Argument(metavar="QUESTION", help="The id of a question (`perdure asks`).")],
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="[VALUE]", help="yes or no, one of the choices, a text, or JSON. Without it, the question is shown."
        ),
    ] = None,
    who: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Who answers; by default the user of this machine.")
    ] = None,
    edit: Annotated[
        str | None, typer.Option(metavar="JSON", help="Arguments that are to be used in place of the proposed ones.")
    ] = None,
    data: Data = HERE,
    as_json: AsJson = False,
) -> None:
    """Answer a question to people: of a run, or about a call of a chat. The first answer that fits counts, by whatever way it comes.

    Whoever has the directory may answer everything, and is recorded.

    Examples:
        perdure answer ship-42:1
        perdure answer ship-42:1 yes
        perdure answer ship-42:2 express --as ada
        perdure answer ship-42:3 yes --edit '{"customers": 12}'
    """
    about = actors.about_ask(ask)
    name = None if who is None else check_id("as", who, 256)
    args = None if edit is None else _object("edit", edit)
    with opened(data) as ledger:
        asked: dict[str, Any] = {}
        try:
            asked = ledger.ask(*about)
        except AskClosed:
            if value is None:
                raise
        if value is not None:  # whoever takes the answer knows best why a question is closed
            given, digest = value_of(asked.get("schema", {}), value), asked.get("digest")
            asked = {**ledger.answer(ask, given, who=name, args=args, digest=digest, channel="cli")}
    if as_json:
        print(json_of(asked))
    elif value is None:
        print_pairs({name: each for name, each in asked.items() if each not in (None, [])})
    elif asked["status"] == "answered":
        print(f"{ask} is answered, and {'its run' if asked['kind'] == 'question' else 'its turn'} goes on.")
    else:
        print(f"{ask} has {plural(len(asked['answers']), 'answer')}; {asked['people']} people have to agree.")


def value_of(schema: dict[str, Any], text: str) -> object:
    """What a text says as an answer of this JSON schema."""
    if schema.get("type") == "boolean" and text.lower() in (*YES, *NO):
        return text.lower() in YES
    if schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:  # whether a text fits is said by what checks it
        return text


def _object(field: str, text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError as problem:
        raise BadRequest(field, f"{text!r:.200} is no JSON: {problem}") from None
    if not isinstance(found, dict):
        raise BadRequest(field, f"{text!r:.200} is no object of arguments by their names")
    return found
