"""The requirements of a graph, compared with a worker's report."""

from typing import Any

import pytest

from comfyrelay.domain.capabilities import (
    Fit,
    RequirementKind,
    Requirements,
    UnmetRequirements,
    fitness,
    merge_unmet,
    refusal_text,
    wait_text,
)

NEEDS = Requirements(
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
def test_worker_that_reports_everything_is_able(models: Any) -> None:
    found = fitness(NEEDS, {"node_types": NODES, "models": models})
    assert found.fit is Fit.ABLE
    assert not found.missing_node_types
    assert not found.missing_models


def test_missing_requirements_are_named() -> None:
    found = fitness(NEEDS, {"node_types": ["SaveVideo"], "models": {"loras": ["lora.pt"]}})
    assert found.fit is Fit.UNABLE
    assert found.missing_node_types == ["CheckpointLoader"]
    assert found.missing_models == ["sd/base.safetensors"]
    assert found.text == "The worker is missing the node CheckpointLoader and the model sd/base.safetensors."


def test_partial_report_counts() -> None:
    found = fitness(NEEDS, {"models": []})
    assert found.fit is Fit.UNABLE
    assert found.missing_node_types == []
    assert found.missing_models == ["lora.pt", "sd/base.safetensors"]


@pytest.mark.parametrize(
    "capabilities",
    [{}, {"gpu": "A100"}, {"node_types": "all", "models": 7}, {"node_types": NODES}, {"models": list(NEEDS.models)}],
)
def test_unreported_capabilities_are_unknown(capabilities: dict[str, Any]) -> None:
    found = fitness(NEEDS, capabilities)
    assert found.fit is Fit.UNKNOWN
    assert "does not report" in found.text


def test_graph_without_models_needs_no_model_report() -> None:
    needs = Requirements(node_types=frozenset({"SaveVideo"}), models=frozenset())
    assert fitness(needs, {"node_types": NODES}).fit is Fit.ABLE


def test_long_lists_are_cut_in_the_text_but_not_in_the_data() -> None:
    needs = Requirements(node_types=frozenset(f"Node{n}" for n in range(9)), models=frozenset())
    found = fitness(needs, {"node_types": []})
    assert len(found.missing_node_types) == 9
    assert found.text.endswith("Node4 and 4 more.")


def test_malformed_report_is_ignored() -> None:
    odd = {"node_types": [1, None, "SaveVideo", "CheckpointLoader"], "models": {"loras": "x", "vae": [["lora.pt"]]}}
    assert fitness(NEEDS, odd).missing_models == ["lora.pt", "sd/base.safetensors"]


def test_worker_fits_if_one_of_its_servers_has_everything() -> None:
    report = {"node_types": NODES, "models": sorted(NEEDS.models)}
    without_node = {"missing": {"node_types": ["SaveVideo"], "models": []}}
    without_both = {"missing": {"node_types": ["SaveVideo"], "models": ["lora.pt"]}}
    assert fitness(NEEDS, {**report, "comfyui": [without_both, {}]}).fit is Fit.ABLE
    # Neither server has everything, although both together do: report the one that is missing the least.
    found = fitness(NEEDS, {**report, "comfyui": [without_both, without_node]})
    assert (found.fit, found.missing_node_types, found.missing_models) == (Fit.UNABLE, ["SaveVideo"], [])


@pytest.mark.parametrize("servers", ["?", [7, None], [{"missing": 7}], [{"missing": {"node_types": 7}}]])
def test_malformed_servers_are_ignored(servers: Any) -> None:
    assert fitness(NEEDS, {"node_types": NODES, "models": sorted(NEEDS.models), "comfyui": servers}).fit is Fit.ABLE


ONE = UnmetRequirements(worker="one", node_types=["A", "B"], models=[])
TWO = UnmetRequirements(worker="two", node_types=["B"], models=["m.pt"])
UNREPORTED = UnmetRequirements(worker="silent", node_types=["A"], models=[], unreported=[RequirementKind.MODEL])


def test_missing_requirements_are_named_with_the_workers_that_have_them() -> None:
    found = [
        (requirement.kind, requirement.name, requirement.workers) for requirement in merge_unmet([ONE, TWO, UNREPORTED])
    ]
    assert found == [
        (RequirementKind.NODE, "A", ["two"]),
        (RequirementKind.NODE, "B", ["silent"]),
        # A worker that reports no models does not count as having one.
        (RequirementKind.MODEL, "m.pt", ["one"]),
    ]


def test_refusal_lists_workers_by_number_or_name() -> None:
    found = merge_unmet([ONE, TWO])
    assert refusal_text(found, workers=2, shows_names=True) == (
        "None of the 2 workers meets all requirements: the node A (only on two), the node B (on no worker), "
        "the model m.pt (only on one)."
    )
    assert "the node A (only on 1 worker)" in refusal_text(found, workers=2, shows_names=False)
    assert refusal_text(merge_unmet([ONE]), workers=1, shows_names=False) == "The worker is missing the nodes A, B."


def test_refusal_names_at_most_fifty_requirements() -> None:
    many = UnmetRequirements(worker="one", node_types=[f"N{n:02}" for n in range(60)], models=[])
    assert refusal_text(merge_unmet([many]), workers=1, shows_names=False).endswith("N49 and 10 more.")
    assert refusal_text(merge_unmet([many, many]), workers=2, shows_names=False).endswith(
        "N49 (on no worker), and 10 more."
    )


def test_wait_text_lists_all_missing_requirements() -> None:
    assert wait_text(merge_unmet([ONE, TWO])) == "Waiting for a worker with the nodes A, B and the model m.pt."
