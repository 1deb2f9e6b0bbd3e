"""Responses fit the OpenAPI files of Comfy Org, except for the documented differences.

The files are not part of this repository. `--comfy-contract` and `--comfyui-contract` name them.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from comfyrelay.simulator.misbehaviour import Fail
from tests.support.api_calls import png
from tests.support.comfyui_site import ComfyuiSite, open_site
from tests.support.graphs import invert
from tests.support.schemathesis_runs import check_responses
from tests.support.world import SqliteBackend

PHASES, EXAMPLES = "examples,coverage,fuzzing", 40
ANY: dict[str, Any] = {}
SETTINGS: Mapping[str, Any] = {"rate_limit_per_minute": 1_000_000, "max_active_jobs_per_user": 1_000}
UNKNOWN_NODE = {"1": {"class_type": "NoSuchNode", "inputs": {}}}


class Difference(NamedTuple):
    """A part of a contract, and what it is here. `None` removes the part."""

    part: Sequence[str]
    here: Any
    reason: str


def _response(method: str, path: str, status: int) -> tuple[str, ...]:
    return "paths", path, method, "responses", str(status)


def _schema(method: str, path: str) -> tuple[str, ...]:
    return *_response(method, path, 200), "content", "application/json", "schema"


_ERROR = {"$ref": "#/components/schemas/ErrorEnvelope"}
# docs/reference/api-comfy.md has the same list.
COMFY = (
    Difference(
        _response("post", "/api/v2/assets/from-hash", 422),
        {"description": "an invalid body", "content": {"application/json": {"schema": _ERROR}}},
        "the contract has no status for an invalid body, and other routes answer 422",
    ),
    Difference(
        (*_response("get", "/api/v2/jobs/{id}/events", 200), "content", "text/event-stream", "schema"),
        {"type": "object", "required": ["event", "data"]},
        "the contract describes the stream, and schemathesis checks its events",
    ),
)
_CODE = "ComfyUI's code"
# docs/reference/api-comfyui.md has the same list.
COMFYUI = (
    Difference((*_response("post", "/api/queue", 200), "content"), None, _CODE),
    Difference((*_response("post", "/api/settings", 200), "content"), None, _CODE),
    Difference((*_response("post", "/api/settings/{id}", 200), "content"), None, _CODE),
    Difference(_schema("get", "/api/settings/{id}"), ANY, _CODE),
    Difference(_schema("get", "/api/global_subgraphs/{id}"), ANY, _CODE),
    Difference(_schema("get", "/api/userdata"), {"type": "array"}, _CODE),
    Difference((*_response("get", "/api/userdata/{file}", 200), "content"), None, _CODE),
    Difference(_schema("post", "/api/userdata/{file}"), ANY, _CODE),
    Difference(_schema("post", "/api/userdata/{file}/move/{dest}"), ANY, _CODE),
    Difference(
        _schema("post", "/api/jobs/cancel"), {"type": "object", "properties": {"cancelled": {"type": "boolean"}}}, _CODE
    ),
    Difference(("components", "schemas", "ExecutionError", "properties", "current_outputs"), {"type": "array"}, _CODE),
    Difference((*_response("get", "/internal/logs", 200), "content"), {"application/json": {}}, _CODE),
    Difference(
        _response("post", "/api/userdata/{file}", 404), {"description": "no such path"}, "a name with a line break"
    ),
    *(
        Difference(_response(method, f"/api/userdata{path}", 400), {"description": "an invalid name"}, "a JSON body")
        for method, path in (("get", ""), ("get", "/{file}"), ("post", "/{file}"), ("post", "/{file}/move/{dest}"))
    ),
)
# Routes that ComfyUI has only with `--enable-assets`, or that only Comfy Cloud has.
ABSENT = r"^/api/(assets|tags|tasks|feedback|files|workflows|vhs|user$|job/)|^/api/history_v2$|/publish$|^/health$"


@pytest.fixture
def contract(request: pytest.FixtureRequest) -> Any:
    """Return the contract that the option names; skip the test without it."""
    path = request.config.getoption(request.param)
    if path is None:
        pytest.skip(f"needs {request.param}, the path of an OpenAPI file of Comfy Org; see CONTRIBUTING.md")
    return yaml.safe_load(Path(path).read_text("utf-8"))


@pytest.mark.parametrize("contract", ["--comfy-contract"], indirect=True)
async def test_comfy_api_fits_its_contract(contract: Any, sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    async with open_site(sqlite_backend, None, tmp_path, **SETTINGS) as site:
        await _ended_prompts(site)
        user = site.client.user
        assert user is not None
        jobs = [job["id"] for job in (await user.call("GET", "/api/v2/jobs")).json()["jobs"]]
        bodies = [(await user.call("GET", f"/api/v2/jobs/{job}")).json() for job in jobs]
        [output] = [output for body in bodies for output in body["outputs"]]
        file = {"content_type": "image/png", "file_path": "red.png"}
        answer = await user.call("POST", "/api/v2/assets", data=file, files={"file": ("red.png", png("red"))})
        upload = answer.raise_for_status().json()
        for name, values in {
            "JobId": jobs,
            "AssetId": [output["id"], upload["id"]],
            "BlakeHash": [upload["hash"]],
        }.items():
            _give(contract["components"]["parameters"][name], *values)
        _give_body(contract, "/api/v2/jobs", {"workflow": invert(3)}, {"workflow": UNKNOWN_NODE})
        _give_body(contract, "/api/v2/assets/from-hash", {"hash": upload["hash"]})
        await _check(contract, COMFY, site, tmp_path, url=site.public_url)


@pytest.mark.parametrize("contract", ["--comfyui-contract"], indirect=True)
async def test_comfyui_api_fits_its_contract(contract: Any, sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    async with open_site(sqlite_backend, None, tmp_path, **SETTINGS) as site:
        done, failed = await _ended_prompts(site)
        [image] = (await site.client.ended(done))["outputs"]["3"]["images"]
        await site.client.post("/userdata/workflows%2Fa.json", {})
        await site.client.post("/userdata/b.json", {})
        await site.client.post("/settings/Comfy.Locale", "en")
        values: Mapping[str, Sequence[str]] = {
            "prompt_id": (done, failed),
            "job_id": (done, failed),
            "folder": ("checkpoints",),
            "dir": ("workflows",),
            "file": ("b.json",),
            "dest": ("c.json",),
            **{name: (value,) for name, value in image.items()},
        }
        for operations in contract["paths"].values():
            for operation in operations.values():
                for parameter in operation.get("parameters", ()):
                    _give(parameter, *values.get(parameter.get("name"), ()))
        _give(contract["paths"]["/api/settings/{id}"]["get"]["parameters"][0], "Comfy.Locale")
        _give_body(contract, "/api/prompt", {"prompt": invert(3)}, {"prompt": UNKNOWN_NODE})
        await _check(contract, COMFYUI, site, tmp_path, url=site.url, skipped=ABSENT)


async def _ended_prompts(site: ComfyuiSite) -> tuple[str, str]:
    """Run a prompt that succeeds and one that fails."""
    done = await site.client.prompt(invert(1))
    await site.client.ended(done)
    for simulator in site.simulators:
        simulator.misbehave(Fail(class_type="ImageInvert"))
    failed = await site.client.prompt(invert(2))
    await site.client.ended(failed)
    for simulator in site.simulators:
        simulator.behave()
    return done, failed


def _give(place: dict[str, Any], *values: Any) -> None:
    """Make schemathesis send these values of a parameter or a body."""
    if values:
        place.pop("example", None)
        place["examples"] = {str(number): {"value": value} for number, value in enumerate(values)}


def _give_body(contract: Any, path: str, *values: Any) -> None:
    _give(contract["paths"][path]["post"]["requestBody"]["content"]["application/json"], *values)


async def _check(
    contract: Any, differences: Sequence[Difference], site: ComfyuiSite, folder: Path, *, url: str, skipped: str = "^$"
) -> None:
    for difference in differences:
        *parents, name = difference.part
        place = contract
        for parent in parents:
            place = place[parent]
        if difference.here is None:
            del place[name]
        else:
            place[name] = difference.here
    document = folder / "contract.json"
    document.write_text(json.dumps(contract, default=str), "utf-8")
    token = str(site.client.http.headers["Authorization"]).removeprefix("Bearer ")
    await check_responses(document, url, token, phases=PHASES, examples=EXAMPLES, skipped=skipped)
