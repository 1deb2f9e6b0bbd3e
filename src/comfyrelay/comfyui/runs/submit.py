"""Handing a graph to a server, when it is not always clear whether the server took it."""

import asyncio
from collections.abc import Mapping, Set
from typing import Any

from comfyrelay.comfyui.graphs.explain import explain_refusal, failure_of, node_problems
from comfyrelay.comfyui.graphs.graph import Graph, dump_json
from comfyrelay.comfyui.runs.history import position_in
from comfyrelay.comfyui.runs.silence_limits import Patience
from comfyrelay.comfyui.runs.timeouts import RunTimeouts
from comfyrelay.errors import ComfyError, ServerRefused, ServerUnreachable
from comfyrelay.http_client import Http, NotConnected, object_in

# A request that was cut off may still be on its way into the queue.
_RETRY_DELAYS = (0.3, 0.7)
# A server that does not answer is asked again, but not stormed.
_PAUSE_SECONDS = 0.5


class NotTaken(ComfyError):
    """The server did not take the graph; it may be sent again."""


async def post_graph(
    http: Http,
    graph: Graph,
    *,
    prompt_id: str,
    client_id: str,
    extra_data: Mapping[str, Any] | None = None,
    timeouts: RunTimeouts,
) -> dict[str, Any]:
    """Submit a graph and return the `node_errors` beside its acceptance.

    `NotTaken` means that it is not in the queue. An answer that was lost, or a 500, does not mean that: the server is
    asked whether it knows the run, and given time if it does not answer.
    """
    body = {"prompt": graph, "prompt_id": prompt_id, "client_id": client_id, "extra_data": dict(extra_data or {})}
    try:
        response = await http.send("POST", "/prompt", content=dump_json(body))
    except NotConnected:
        raise
    except ServerUnreachable as error:
        return await _find_or_raise(http, prompt_id, error, Patience(timeouts), delays=_RETRY_DELAYS)
    if response.status_code == 400 and (refusal := object_in(response)):
        raise explain_refusal(refusal, raw=response.text)
    if response.is_server_error:
        return await _find_or_raise(http, prompt_id, http.refused(response), Patience(timeouts))
    if not response.is_success:
        raise http.refused(response)
    errors = object_in(response).get("node_errors")
    return errors if isinstance(errors, dict) else {}


def refused_outputs(node_errors: Mapping[str, Any], wanted: Set[str]) -> ComfyError | None:
    """The failure in `node_errors` that came with a 200: outputs that the server will silently leave out.

    It counts when it concerns a wanted output; without wanted ones, any.
    """
    concerned = {
        node_id: entry
        for node_id, entry in node_errors.items()
        if not wanted or not wanted.isdisjoint(map(str, entry.get("dependent_outputs") or ()))
    }
    problems = node_problems(concerned)
    return failure_of(problems) if problems else None


async def knows(http: Http, prompt_id: str) -> bool:
    """Whether a run is queued, running or over on the server."""
    if position_in(await http.object("/queue"), prompt_id) is not None:
        return True
    return bool(await http.object(f"/history/{prompt_id}"))


async def _find_or_raise(
    http: Http, prompt_id: str, error: ComfyError, patience: Patience, *, delays: tuple[float, ...] = ()
) -> dict[str, Any]:
    for delay in (0.0, *delays):
        await asyncio.sleep(delay)
        if await _patiently_knows(http, prompt_id, patience):
            return {}
    raise NotTaken(error.detail, raw=error.raw) from error


async def _patiently_knows(http: Http, prompt_id: str, patience: Patience) -> bool:
    while True:
        try:
            return await knows(http, prompt_id)
        except (ServerUnreachable, ServerRefused) as error:
            patience.failed(error)
            await asyncio.sleep(_PAUSE_SECONDS)
