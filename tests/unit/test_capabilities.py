"""What a graph needs, held against what a worker reports."""

from typing import Any

import pytest

from comfyrelay.domain.capabilities import Fit, Needs, fitness

NEEDS = Needs(
    node_types=frozenset({"CheckpointLoader", "SaveVideo"}), models=frozenset({"sd/base.safetensors", "lora.pt"})
)
NODES = ["CheckpointLoader", "SaveVideo", "KSampler"]


@pytest.mark.parametrize(
    "models",
    [
        {"checkpoints": ["sd/base.safetensors"], "loras": ["lora.pt", "other.pt"]},
        ["lora.pt", "sd/base.safetensors"],
        {"checkpoints": ["sd\\base.safetensors"], "loras": ["lora.pt"]},
    ],
    ids=["by folder", "flat", "as Windows writes it"],
)
def test_a_worker_that_reports_everything_is_able(models: Any) -> None:
    found = fitness(NEEDS, {"node_types": NODES, "models": models})
    assert found.fit is Fit.ABLE
    assert not found.missing_node_types
    assert not found.missing_models


def test_what_is_missing_is_named() -> None:
    found = fitness(NEEDS, {"node_types": ["SaveVideo"], "models": {"loras": ["lora.pt"]}})
    assert found.fit is Fit.LACKING
    assert found.missing_node_types == ["CheckpointLoader"]
    assert found.missing_models == ["sd/base.safetensors"]
    assert found.text == "It lacks the node CheckpointLoader and the model sd/base.safetensors."


def test_what_is_reported_counts_even_if_the_rest_is_not() -> None:
    found = fitness(NEEDS, {"models": []})
    assert found.fit is Fit.LACKING
    assert found.missing_node_types == []
    assert found.missing_models == ["lora.pt", "sd/base.safetensors"]


@pytest.mark.parametrize(
    "capabilities",
    [{}, {"gpu": "A100"}, {"node_types": "all", "models": 7}, {"node_types": NODES}, {"models": list(NEEDS.models)}],
)
def test_what_is_not_reported_is_unknown(capabilities: dict[str, Any]) -> None:
    found = fitness(NEEDS, capabilities)
    assert found.fit is Fit.UNKNOWN
    assert "does not say" in found.text


def test_a_graph_without_models_asks_for_no_report_of_them() -> None:
    needs = Needs(node_types=frozenset({"SaveVideo"}), models=frozenset())
    assert fitness(needs, {"node_types": NODES}).fit is Fit.ABLE


def test_long_lists_are_cut_in_the_text_but_not_in_the_data() -> None:
    needs = Needs(node_types=frozenset(f"Node{n}" for n in range(9)), models=frozenset())
    found = fitness(needs, {"node_types": []})
    assert len(found.missing_node_types) == 9
    assert found.text.endswith("Node4 and 4 more.")


def test_reports_of_the_wrong_shape_do_not_hurt() -> None:
    odd = {"node_types": [1, None, "SaveVideo", "CheckpointLoader"], "models": {"loras": "x", "vae": [["lora.pt"]]}}
    assert fitness(NEEDS, odd).missing_models == ["lora.pt", "sd/base.safetensors"]
