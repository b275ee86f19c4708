"""The gateway as an application of Ray Serve: `python -m tests.cluster.ray_serve_app DIR PORT TOKEN`.

It prints a line when it serves, and ends when its standard input does.
"""

from __future__ import annotations

import sys
from typing import Any

import ray
from ray import serve

from perdure import Agent, RunContext, exposed
from perdure.gateway import Gateway, Principal, bearer


class Guide(Agent):
    """Tells where it is, and greets."""

    stands_alone = True

    async def run(self, input: str, run: RunContext) -> str:
        await run.report_progress(fraction=0.5, milestone="half-way")
        return input.upper()

    @exposed
    def greet(self, name: str) -> str:
        """Greet somebody."""
        return f"Hello, {name}."


def main() -> None:
    """Serve until nobody listens."""
    data, port, secret = sys.argv[1:]
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=80_000_000, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
    deployment: Any = serve.deployment(num_replicas=1, ray_actor_options={"num_cpus": 0})

    def application() -> Any:
        from tests.cluster.ray_serve_app import Guide  # noqa: PLC0415 - in the replica, by its module's name

        return Gateway([Guide], data=data, authenticate=bearer({secret: Principal("token")}))

    class Agents:
        """Answers by the gateway."""

    serve.run(deployment(serve.ingress(application)(Agents)).bind())
    print("ready", flush=True)  # noqa: T201
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
