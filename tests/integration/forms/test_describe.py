"""Described graphs run through the engine and on the simulator."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.comfyui.graphs.graph import Graph, replace_placeholders
from comfyrelay.domain.properties import ASSET_TYPES
from comfyrelay.protocol import user as wire
from comfyrelay.services.catalogue.graph_import import WorkflowImport
from comfyrelay.services.forms.describe import describe_graph
from comfyrelay.services.jobs.submission.requests import ItemRequest, JobRequest
from comfyrelay.simulator import Simulator
from tests.support import graphs as small
from tests.support.described_graphs import files_of, filled_graph, request_body
from tests.support.form_graphs import ALL, OBJECT_INFO
from tests.support.world import SqliteBackend, World, open_world


class TestOnSimulator:
    @pytest.fixture
    async def comfy(self) -> AsyncIterator[ComfyClient]:
        async with Simulator() as simulator, ComfyClient(simulator.url) as client:
            yield client

    @pytest.mark.parametrize(
        ("graph", "roles", "extension"),
        [
            (small.invert(), {}, "png"),
            (small.invert_file(), {"image": "image"}, "png"),
            (small.clip(), {}, "mp4"),
            (small.invert_video(), {"video": "video"}, "mp4"),
        ],
        ids=["image", "image to image", "clip", "video to video"],
    )
    async def test_described_graphs_run_on_the_simulator(
        self, graph: Graph, roles: dict[str, str], extension: str, comfy: ComfyClient
    ) -> None:
        described = describe_graph(graph, await comfy.object_info())
        assert (described.roles, described.output_extension) == (roles, extension)
        assert filled_graph(described, files_of(graph, described)) == graph
        names = {
            key: (await comfy.upload(small.PNG if kind == "image" else small.MP4, name=f"in.{kind[0]}")).reference
            for kind, key in roles.items()
        }
        result = await comfy.run(filled_graph(described, names))
        assert any(file.node_id == described.output_node_id for file in result.files)
        assert result.files_of(described.output_node_id)[0].filename.endswith(f".{extension}")
        assert result.files_of(described.output_node_id)[0].mime_type == described.output_mime_type


every_graph = pytest.mark.parametrize("graph", ALL.values(), ids=ALL)


@pytest.fixture
async def world(sqlite_backend: SqliteBackend, tmp_path: Path) -> AsyncIterator[World]:
    """Use SQLite only, like the desk."""
    async with open_world(sqlite_backend, tmp_path) as world:
        yield world


@every_graph
async def test_described_graph_is_leased_unchanged(graph: Graph, world: World) -> None:
    described = describe_graph(graph, OBJECT_INFO)
    user = await world.user()
    body = wire.NewWorkflow.model_validate(request_body(described))
    new = WorkflowImport(**body.model_dump(mode="json"))
    workflow = (await world.engine.catalogue.own_workflows.add(user.tenant_id, new)).workflow
    worker = await world.worker(await world.fleet(workflow))
    payload = {}
    input_file_id = None
    for property_ in described.properties:
        if property_.get("role") == "seed":
            # without a value, a random seed would be used
            payload[property_["key"]] = property_["default_value"]
        if property_["type"] in ASSET_TYPES:
            file_id = await world.engine.accounts.tenancy.add_file(
                user, path=f"uploads/{property_['key']}", mime_type=f"{property_['type']}/x", size=1
            )
            if property_["is_primary_input"]:
                input_file_id = file_id
            else:
                payload[property_["key"]] = file_id
    item = ItemRequest(input_payload=payload, input_file_id=input_file_id)
    await world.engine.jobs.submit.submit(
        JobRequest(
            tenant_id=user.tenant_id,
            user_id=user.id,
            idempotency_key="k",
            workflow_slug=workflow.slug,
            item=item,
        )
    )
    leased = await world.lease(worker)
    assert leased is not None
    own = files_of(graph, described)
    names = {asset.placeholder: own[asset.key] for asset in leased.payload.assets}
    assert replace_placeholders(leased.graph, names) == graph
    assert leased.payload.output_node_id == described.output_node_id
