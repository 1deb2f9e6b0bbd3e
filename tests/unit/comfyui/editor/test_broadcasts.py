"""Use Everywhere nodes send their values as the pack does; the expected links were observed in the editor."""

from collections.abc import Mapping
from typing import Any

import pytest

from comfyrelay.comfyui.editor.convert import convert_workflow
from comfyrelay.errors import GraphError
from tests.support import everywhere_files
from tests.support.editor_files import DEFINITIONS
from tests.support.everywhere_files import CLIP_LINK, CLIP_SENT, encode, everywhere, file_of, loader, ue

LOADER: dict[str, Any] = {"input": {"required": {"ckpt_name": [["a"], {}]}}, "output": ["MODEL", "CLIP", "VAE"]}
KNOWN: dict[str, Any] = {
    **DEFINITIONS,
    "CheckpointLoaderSimple": LOADER,
    "KSampler": {
        "input": {
            "required": {
                "model": ["MODEL"],
                "seed": ["INT", {"default": 0, "control_after_generate": True}],
                "positive": ["CONDITIONING"],
                "negative": ["CONDITIONING"],
            }
        },
        "output": ["LATENT"],
    },
    "VAEDecode": {"input": {"required": {"samples": ["LATENT"], "vae": ["VAE"]}}, "output": ["IMAGE"]},
    "PrimitiveInt": {"input": {"required": {"value": ["INT", {"control_after_generate": True}]}}, "output": ["INT"]},
}
RECEIVERS = ({"2"}, {"3"}, {"2", "3"}, set[str](), {"2"}, {"3"}, {"2"}, {"3"}, {"2"}, {"3"})


def converted(file: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {node_id: found["inputs"] for node_id, found in convert_workflow(file, KNOWN).items()}


def test_value_goes_to_every_free_input_of_its_type() -> None:
    found = converted(everywhere_files.types())
    assert [found["2"]["clip"], found["3"]["clip"], found["4"]["model"]] == [["1", 1], ["1", 1], ["1", 0]]
    # The pack does not need to be installed.
    assert "10" not in found


def test_connected_and_refused_inputs_are_not_changed() -> None:
    found = converted(everywhere_files.connected_and_refusing())
    assert [found[node_id].get("clip") for node_id in ("3", "5", "6")] == [["7", 1], None, None]


@pytest.mark.parametrize(
    ("settings", "receivers"),
    [*zip(everywhere_files.RESTRICTIONS, RECEIVERS, strict=True), ({"title_regex": "("}, {"2", "3"})],
)
def test_restrictions_choose_the_receivers(settings: Mapping[str, Any], receivers: set[str]) -> None:
    found = converted(everywhere_files.restricted(settings))
    assert {node_id for node_id in ("2", "3") if "clip" in found[node_id]} == receivers


def test_patterns_of_older_versions_are_fields() -> None:
    found = converted(everywhere_files.older())
    assert (found["2"]["clip"], found["3"]["clip"]) == (["1", 1], ["20", 1])


def test_highest_priority_wins_and_a_tie_sends_nothing() -> None:
    found = converted(everywhere_files.priorities())
    assert (found["2"]["clip"], found["4"].get("model")) == (["20", 1], None)


@pytest.mark.parametrize(("kind", "labels", "rule"), everywhere_files.REPEATED)
def test_two_values_of_one_type_are_distinguished_by_name(
    kind: str, labels: tuple[str | None, str | None], rule: int
) -> None:
    found = converted(everywhere_files.repeated(kind, labels, rule))
    assert (found["4"]["positive"], found["4"]["negative"]) == (["2", 0], ["3", 0])


def test_seed_goes_to_fields_that_accept_it() -> None:
    found = converted(everywhere_files.seeds())
    assert (found["4"]["seed"], found["5"]["seed"], found["12"]) == (["12", 0], 5, {"value": 77})


def test_outputs_of_a_node_are_broadcast_unless_they_are_silent() -> None:
    found = converted(everywhere_files.own_outputs())
    assert (found["2"]["clip"], found["5"]) == (["1", 1], {})


def test_value_passes_bypassed_nodes_and_does_not_come_from_muted_ones() -> None:
    found = converted(everywhere_files.bypassed_and_muted())
    assert (found["2"]["clip"], found["5"]) == (["1", 1], {})


def test_values_stay_within_their_subgraph_and_reach_its_output() -> None:
    found = converted(everywhere_files.inside_subgraph())
    assert (found["6:7"]["clip"], found["4"]["positive"]) == (["1", 1], ["6:7", 0])
    assert "negative" not in found["4"]


@pytest.mark.parametrize(
    "pattern",
    [
        *("(a+)+b", "(a|a)*b", "a*a*a*a*b", "(a|a)" * 20, "(a)\\1", "(?=a)", "a?" * 20),
        *("a{,60}" * 5 + "b", "(?:a|a)" * 42 + "b"),
    ],
)
def test_pattern_that_could_run_for_hours_is_refused(pattern: str) -> None:
    nodes = [loader(), everywhere(10, CLIP_SENT, properties=ue(title_regex=pattern)), encode(2, title="a" * 100)]
    with pytest.raises(GraphError, match="too complex"):
        converted(file_of(nodes, [CLIP_LINK]))


def test_searches_of_a_workflow_are_limited_together() -> None:
    receivers = [encode(node_id, title=f"{node_id} {'a' * 90}") for node_id in range(100, 400)]
    sender = everywhere(10, CLIP_SENT, properties=ue(title_regex=".*.*b"))
    with pytest.raises(GraphError, match="take too long"):
        converted(file_of([loader(), sender, *receivers], [CLIP_LINK]))


def test_too_many_senders_are_refused() -> None:
    senders = [everywhere(node_id, [("anything", "CLIP", 2)]) for node_id in range(100, 601)]
    with pytest.raises(GraphError, match="more than 500 Use Everywhere nodes"):
        converted(file_of([loader(), *senders], [CLIP_LINK]))
