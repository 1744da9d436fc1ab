"""Programs that answer at an address, told by a route that only they have: what to say where another one was expected."""

from __future__ import annotations

from collections.abc import Mapping

from covey.errors import EngineError, ServerLost
from covey.sample.remote.client import Client, Refused
from covey.sample.remote.server import ServerKind

ROUTES: Mapping[ServerKind, str] = {"covey": "/covey/facts", "sglang": "/model_info", "vllm": "/v1/models"}
"""In this order: SGLang has vLLM's route too."""

NAMES: Mapping[ServerKind, str] = {"covey": "covey serve", "sglang": "SGLang", "vllm": "vLLM"}

SECONDS = 30.0
"""For each question."""


def kind_at(client: Client) -> ServerKind | None:
    """Return which kind of server answers at an address; None: something else does.

    Raises:
        ServerLost, Refused: nothing answers, or it asks for a token.
    """
    for kind, route in ROUTES.items():
        try:
            said = client.ask("GET", route, seconds=min(client.timeout, SECONDS))
        except ServerLost:
            raise
        except Refused as error:
            if error.status == 401:
                raise
        except EngineError:  # a page that is no JSON
            continue
        else:
            if isinstance(said, dict):
                return kind
    return None


def refuse_stranger(client: Client, wanted: ServerKind, start: str) -> None:
    """Raise where what answers at an address is no server of the wanted kind.

    `wanted` is the kind that the settings name, and `start` the command that starts such a server.

    Raises:
        EngineError: says what answers there, and what to do.
    """
    found = kind_at(client)
    if found == wanted:
        return
    if found is not None:
        raise EngineError(
            f"{client.url} is a server of {NAMES[found]}, not of {NAMES[wanted]}. Set engine={found!r}, with its address in "
            f"engine_urls; or start {NAMES[wanted]} by {start}."
        )
    path = f" Leave {client.path!r} out of the address: routes are added to it." if client.path else ""
    raise EngineError(
        f"{client.url} answers, but is no server of {', '.join(NAMES.values())}.{path} Start one by {start}."
    )
