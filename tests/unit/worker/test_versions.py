"""A worker that uses a server of another version says which side is older and what to do."""

from typing import Any

import httpx
import pytest

from comfyrelay import __version__
from comfyrelay.errors import ControlPlaneUnreachable, InvalidInput
from comfyrelay.protocol.worker import PROTOCOL, VERSION_HEADER
from comfyrelay.worker.control import ControlPlane
from comfyrelay.worker.registration import explain
from comfyrelay.worker.settings import WorkerSettings

URL = "http://relay.test"
SETTINGS = WorkerSettings(api_base_url=URL, fleet_slug="home", fleet_secret="s" * 16)
REFUSED = {"capabilities": "Input should be a valid list"}


async def answered(status: int, body: dict[str, Any], version: str | None) -> ControlPlane:
    """Return a client whose server gives this answer."""
    headers = {VERSION_HEADER: version} if version is not None else {}
    control = ControlPlane(URL, worker_id="gpu-1")
    await control.close()
    transport = httpx.MockTransport(lambda _request: httpx.Response(status, json=body, headers=headers))
    control._http = httpx.AsyncClient(transport=transport, base_url=URL)
    return control


async def refusal(version: str | None, errors: dict[str, str]) -> str:
    problem = {
        "type": "urn:comfyrelay:invalid_input",
        "title": "The input is invalid",
        "status": 422,
        "detail": "The input is invalid.",
        "errors": errors,
    }
    control = await answered(422, problem, version)
    with pytest.raises(InvalidInput) as refused:
        await control.register({}, {"fleet_slug": "home"})
    await control.close()
    return explain(refused.value, SETTINGS, control)


@pytest.mark.parametrize("version", [None, "0.0.9; protocol=2", "0.0.9; protocol=1", "not a version"])
async def test_refusal_of_an_older_server_names_the_server(version: str | None) -> None:
    text = await refusal(version, REFUSED)
    assert f"is older than this worker ({__version__}): update the server" in text
    assert "capabilities: Input should be a valid list" in text


@pytest.mark.parametrize("version", [f"{__version__}; protocol={PROTOCOL + 1}", f"99.0.0; protocol={PROTOCOL}"])
async def test_refusal_of_a_newer_server_asks_to_update_the_worker(version: str) -> None:
    assert f"is newer than this worker ({__version__}): update the worker." in await refusal(version, REFUSED)


async def test_refusal_of_the_same_version_names_the_field() -> None:
    text = await refusal(f"{__version__}; protocol={PROTOCOL}", REFUSED)
    assert text == "The input is invalid. capabilities: Input should be a valid list"


async def test_outdated_worker_repeats_the_message_of_the_server() -> None:
    text = "This worker is too old. Update the worker."
    assert await refusal("99.0.0; protocol=99", {"protocol": text}) == text


async def test_unreadable_answer_of_an_older_server_names_the_server() -> None:
    control = await answered(200, {"data": {"worker_id": "gpu-1", "token": "t"}}, "0.0.1; protocol=1")
    with pytest.raises(ControlPlaneUnreachable, match="is older than this worker"):
        await control.check_registration({}, {"fleet_slug": "home"})
    await control.close()
