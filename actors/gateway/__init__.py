"""What a browser, `curl` and other languages have of Perdure: the core behind every protocol.

    client_connection   a client of the runtime, on the loop that serves the requests
    registry            which agents have an address, and under which name
    hooks               what an author gives a gateway, checked and called
    security            who asks, and what that one may
    problems            errors of Perdure as HTTP statuses and close codes
    feeds               what several connections watch: the events of a run, the state of an agent
    chat_turns          the turns of a chat agent: begun, found and answered
    turn_follower       one turn and the runs of its calls, for one reader
    streaming           event streams over HTTP
    backend             the parts together: what each protocol is given

Each protocol has a folder beside this one, with a function `routes.routes(backend)`: `rest`, `ai_sdk`, `agents_client`, `ag_ui`,
`mcp_server`. `actors.serve` makes one ASGI application of all.
"""
