"""Described graphs through the engine and on the simulator."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.comfyui.graphs.graph import Graph, replace_placeholders
from comfyrelay.domain.properties import ASSET_TYPES
from comfyrelay.protocol import user as wire
from comfyrelay.services.catalogue.graph_import import WorkflowImport
from comfyrelay.services.forms.describe import DescribedWorkflow, describe_graph
from comfyrelay.services.jobs.submission.requests import ItemRequest, JobRequest
from comfyrelay.simulator import Simulator
from tests.support import graphs as small
from tests.support.form_graphs import (
    ALL,
    OBJECT_INFO,
)
from tests.support.world import SqliteBackend, World, open_world


def prop(described: DescribedWorkflow, key: str) -> dict[str, Any]:
    return next(property_ for property_ in described.properties if property_["key"] == key)


def places(described: DescribedWorkflow, key: str) -> set[tuple[str, str]]:
    """The inputs that a property sets."""
    placeholder = prop(described, key)["placeholder"]
    return {
        (node_id, name)
        for node_id, each in described.graph.items()
        for name, value in each["inputs"].items()
        if value == placeholder
    }


def filled(described: DescribedWorkflow, files: Mapping[str, str] | None = None) -> Graph:
    """The graph as a worker runs it, with the defaults and these files."""
    values = {
        property_["placeholder"]: (files or {})[property_["key"]]
        if property_["type"] in ASSET_TYPES
        else property_["default_value"]
        for property_ in described.properties
    }
    return replace_placeholders(described.graph, values)


def files_of(graph: Graph, described: DescribedWorkflow) -> dict[str, str]:
    """The files that the graph itself names."""
    return {
        property_["key"]: graph[node_id]["inputs"][name]
        for property_ in described.properties
        if property_["type"] in ASSET_TYPES
        for node_id, name in places(described, property_["key"])
    }


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
        assert filled(described, files_of(graph, described)) == graph
        names = {
            key: (await comfy.upload(small.PNG if kind == "image" else small.MP4, name=f"in.{kind[0]}")).reference
            for kind, key in roles.items()
        }
        result = await comfy.run(filled(described, names))
        assert any(file.node_id == described.output_node_id for file in result.files)
        assert result.files_of(described.output_node_id)[0].filename.endswith(f".{extension}")
        assert result.files_of(described.output_node_id)[0].mime_type == described.output_mime_type


every_graph = pytest.mark.parametrize("graph", ALL.values(), ids=ALL)


@pytest.fixture
async def world(sqlite_backend: SqliteBackend, tmp_path: Path) -> AsyncIterator[World]:
    """The desk uses SQLite."""
    async with open_world(sqlite_backend, tmp_path) as world:
        yield world


@every_graph
async def test_through_the_engine(graph: Graph, world: World) -> None:
    described = describe_graph(graph, OBJECT_INFO)
    user = await world.user()
    body = wire.NewWorkflow.model_validate(_body(described))
    new = WorkflowImport(**body.model_dump(mode="json"))
    workflow = (await world.engine.catalogue.own_workflows.add(user.tenant_id, new)).workflow
    worker = await world.worker(await world.fleet(workflow))
    payload = {}
    input_file_id = None
    for property_ in described.properties:
        if property_.get("role") == "seed":
            # without a given seed it would be another one
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


def _body(described: DescribedWorkflow) -> dict[str, Any]:
    """The body for the user API."""
    return {
        "graph": described.graph,
        "properties": described.properties,
        "output_node_id": described.output_node_id,
        "output_extension": described.output_extension,
        "output_mime_type": described.output_mime_type,
    }
