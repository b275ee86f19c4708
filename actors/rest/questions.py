"""What is asked over REST as it is declared (`link.questions.OVER_HTTP`): the routes and their models are made of the questions."""

from __future__ import annotations

from typing import Any, get_type_hints

from pydantic import Field, create_model

from perdure.actors.link.questions import OVER_HTTP, OverHttp
from perdure.actors.rest.operations import OF_PATHS, ApiRequest, Handlers, Operation, Taken, names_in


class QuestionHandlers(Handlers):
    """The questions."""

    def table(self) -> list[Operation]:
        return [self._operation(*declared) for declared in OVER_HTTP.items()]

    def _operation(self, kind: type[Any], how: OverHttp) -> Operation:
        async def ask(asked: ApiRequest) -> object:
            place = dict(asked.path)
            told = await (await self._backend.client()).supervisor.ask(kind(**place, **dict(asked.query)))
            return {**place, how.within: told} if how.within else told

        ask.__name__, ask.__doc__ = how.name, kind.__doc__
        named = names_in(how.path)
        fields: dict[str, Any] = {name: (hint, ...) for name, hint in get_type_hints(how.answer).items()}
        answer = create_model(how.answer.__name__, __doc__=how.answer.__doc__, **fields)
        of = _taken(f"Of{kind.__name__}", kind, named)
        query = _taken(f"{kind.__name__}Asked", kind, [name for name in kind._fields if name not in named])
        tells = how.tells_of_agents
        return Operation("GET", how.path, answer, path_model=of, query=query, tells_of_agents=tells, handler=ask)


def _taken(name: str, kind: type[Any], names: list[str]) -> type[Taken]:
    known = OF_PATHS.get((*names,))
    fields: dict[str, Any] = {}
    for each in names if known is None else ():
        hint = get_type_hints(kind, include_extras=True)[each]
        said = next((words for words in getattr(hint, "__metadata__", ()) if isinstance(words, str)), None)
        fields[each] = hint, Field(kind._field_defaults.get(each, ...), description=said)
    return known or create_model(name, __base__=Taken, __doc__=kind.__doc__, **fields)
