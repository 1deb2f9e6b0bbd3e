import json
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from comfyrelay.comfyui.client.uploads import Attachment
from comfyrelay.comfyui.graphs.hash import workflow_hash
from comfyrelay.comfyui.pool.ticket import JobOptions, Ticket, make_ticket
from comfyrelay.errors import GraphError, InvalidInput
from tests.support.pool import NOW, invert, plain


def build_ticket(graph: Any, **options: Any) -> Ticket:
    return make_ticket(graph, cast(JobOptions, options), sequence=1, created_at=NOW)


def test_ticket_copies_graph_metadata_and_extra_data() -> None:
    graph, metadata, extra_data = invert(1), {"user": "u1"}, {"extra_pnginfo": {"workflow": [1]}}
    ticket = build_ticket(graph, metadata=metadata, extra_data=extra_data)
    graph["1"]["inputs"]["color"] = 2
    metadata["user"] = "u2"
    extra_data["extra_pnginfo"]["workflow"].append(2)
    assert orjson.loads(ticket.graph) == invert(1)
    assert ticket.metadata == {"user": "u1"}
    assert ticket.extra_data == {"extra_pnginfo": {"workflow": [1]}}
    assert build_ticket(invert()).extra_data is None


def test_jobs_of_one_workflow_share_a_bucket() -> None:
    assert build_ticket(invert(1)).bucket == build_ticket(invert(2)).bucket
    assert build_ticket(invert(1)).bucket.workflow_hash == workflow_hash(invert())
    assert build_ticket(plain()).bucket != build_ticket(invert()).bucket
    assert (
        build_ticket(invert(), preferred_clients=["a", "b"]).bucket
        == build_ticket(invert(), preferred_clients=("b", "a")).bucket
    )


def test_large_seeds_are_kept_exactly() -> None:
    graph = plain()
    graph["1"]["inputs"]["seed"] = 2**64 - 1
    assert orjson.loads(build_ticket(graph).graph)["1"]["inputs"]["seed"] == 2**64 - 1


def test_graph_may_be_json_text_or_a_file(tmp_path: Path) -> None:
    text = json.dumps(invert())
    path = tmp_path / "graph.json"
    path.write_text(text, "utf-8")
    tickets = [build_ticket(source) for source in (invert(), text, "\ufeff " + text, text.encode(), path)]
    assert {ticket.graph for ticket in tickets} == {tickets[0].graph}
    with pytest.raises(GraphError, match=r"pathlib\.Path"):
        build_ticket(str(path))


def test_seed_of_minus_one_becomes_random() -> None:
    graph = plain()
    graph["1"]["inputs"] |= {"seed": -1, "noise_seed": -1, "seed_offset": -1, "color": -1, "subseed": 5}
    tickets = [build_ticket(graph) for _ in range(2)]
    assert tickets[0].seeds.keys() == {"1.seed", "1.noise_seed"}
    assert tickets[0].seeds != tickets[1].seeds
    for ticket in tickets:
        inputs = orjson.loads(ticket.graph)["1"]["inputs"]
        assert {f"1.{name}": inputs[name] for name in ("seed", "noise_seed")} == ticket.seeds
        assert all(0 <= seed < 2**31 for seed in ticket.seeds.values())
        assert (inputs["seed_offset"], inputs["color"], inputs["subseed"]) == (-1, -1, 5)
    # The caller's graph keeps its -1.
    assert graph["1"]["inputs"]["seed"] == -1


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        ({}, "no nodes"),
        ([], "object"),
        ({"nodes": [], "links": []}, "Export"),
        ({"1": {"inputs": {}}}, "class_type"),
        ({"1": {"class_type": "A"}}, "inputs"),
        ({"1": {"class_type": "A", "inputs": {"x": object()}}}, "JSON"),
    ],
)
def test_invalid_graph_is_refused(graph: Any, why: str) -> None:
    with pytest.raises(GraphError, match=why):
        build_ticket(graph)


def test_missing_nodes_are_refused() -> None:
    with pytest.raises(GraphError, match="99"):
        build_ticket(invert(), include_outputs=["99"])
    with pytest.raises(GraphError, match="Photo"):
        build_ticket(invert(), attachments=[Attachment(node="Photo", input="image", source=b"")])


def test_attachment_needs_a_target() -> None:
    with pytest.raises(InvalidInput, match="either a node and its input, or a placeholder"):
        build_ticket(invert(), attachments=[Attachment(source=b"")])
    with pytest.raises(InvalidInput, match="only letters"):
        build_ticket(invert(), attachments=[Attachment(placeholder="__IMG__", folder="../x", source=b"")])


def test_attachment_with_a_placeholder_needs_no_node() -> None:
    attachment = Attachment(placeholder="__IMG__", source=b"")
    assert build_ticket(invert(), attachments=[attachment]).attachments == (attachment,)


def test_extra_data_must_be_json() -> None:
    with pytest.raises(InvalidInput) as caught:
        build_ticket(invert(), extra_data={"x": object()})
    assert set(caught.value.errors) == {"extra_data"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_attempts", 0),
        ("retry_delay", -1.0),
        ("give_up_after_seconds", -1.0),
        ("job_id", ""),
        ("job_id", "x" * 201),
        ("priorty", 1),
    ],
)
def test_unknown_options_and_options_out_of_range_are_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        build_ticket(invert(), **{field: value})
    assert set(caught.value.errors) == {field}
