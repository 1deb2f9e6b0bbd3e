"""Submit a graph to a server, and find out whether the server accepted it if the response is lost."""

import asyncio
from collections.abc import Mapping, Set
from typing import Any

from comfyrelay.comfyui.graphs.explain import explain_refusal, failure_of, node_problems
from comfyrelay.comfyui.graphs.graph import Graph, dump_json
from comfyrelay.comfyui.runs.history import position_in
from comfyrelay.comfyui.runs.timeouts import RunTimeouts, SilenceLimit
from comfyrelay.errors import ComfyError, ServerRefused, ServerUnreachable
from comfyrelay.http_client import Http, NotConnected, object_in

# A request that was cut off may still reach the queue.
_RETRY_DELAYS = (0.3, 0.7)
# Pause between checks, so as not to flood a server that does not respond.
_PAUSE_SECONDS = 0.5


class NotAccepted(ComfyError):
    """The server did not accept the graph. The graph may be submitted again."""


async def post_graph(
    http: Http,
    graph: Graph,
    *,
    prompt_id: str,
    client_id: str,
    extra_data: Mapping[str, Any] | None = None,
    timeouts: RunTimeouts,
) -> dict[str, Any]:
    """Submit a graph and return its `node_errors` if accepted. `NotAccepted` means that the graph is not in the queue.
    A lost response or a 500 does not prove this, so the client looks for the run until the server responds or the
    silence limit is reached."""
    body = {"prompt": graph, "prompt_id": prompt_id, "client_id": client_id, "extra_data": dict(extra_data or {})}
    try:
        response = await http.send("POST", "/prompt", content=dump_json(body))
    except NotConnected:
        raise
    except ServerUnreachable as error:
        return await _find_or_raise(http, prompt_id, error, SilenceLimit(timeouts), delays=_RETRY_DELAYS)
    if response.status_code == 400 and (refusal := object_in(response)):
        raise explain_refusal(refusal, raw=response.text, graph=graph)
    if response.is_server_error:
        return await _find_or_raise(http, prompt_id, http.refusal(response), SilenceLimit(timeouts))
    if not response.is_success:
        raise http.refusal(response)
    errors = object_in(response).get("node_errors")
    return errors if isinstance(errors, dict) else {}


def refused_outputs(node_errors: Mapping[str, Any], wanted: Set[str]) -> ComfyError | None:
    """Return the failure in the `node_errors` of an accepted graph: outputs that the server will silently skip.

    Errors count if they affect a wanted output, or any output if none is wanted.
    """
    problems = node_problems(
        {
            node_id: entry
            for node_id, entry in node_errors.items()
            if not wanted or not wanted.isdisjoint(map(str, entry.get("dependent_outputs") or ()))
        }
    )
    return failure_of(problems) if problems else None


async def has_run(http: Http, prompt_id: str) -> bool:
    """Whether the server has this run: queued, running or finished."""
    if position_in(await http.object("/queue"), prompt_id) is not None:
        return True
    return bool(await http.object(f"/history/{prompt_id}"))


async def _find_or_raise(
    http: Http, prompt_id: str, error: ComfyError, silence: SilenceLimit, *, delays: tuple[float, ...] = ()
) -> dict[str, Any]:
    """Raise `NotAccepted` if the server does not have the run."""
    for delay in (0.0, *delays):
        await asyncio.sleep(delay)
        if await _has_run_with_retries(http, prompt_id, silence):
            return {}
    raise NotAccepted(error.detail, raw=error.raw) from error


async def _has_run_with_retries(http: Http, prompt_id: str, silence: SilenceLimit) -> bool:
    while True:
        try:
            return await has_run(http, prompt_id)
        except (ServerUnreachable, ServerRefused) as error:
            silence.record_failure(error)
            await asyncio.sleep(_PAUSE_SECONDS)
