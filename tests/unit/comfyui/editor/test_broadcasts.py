"""Use Everywhere nodes send their values as the pack does; the expected links were observed in the editor."""

from collections.abc import Sequence
from typing import Any

import pytest

from comfyrelay.comfyui.editor.convert import convert_workflow
from comfyrelay.errors import GraphError
from tests.support.editor_files import DEFINITIONS, Slot, node, subgraph, workflow

KNOWN: dict[str, Any] = {
    **DEFINITIONS,
    "Loader": {"input": {"required": {"name": [["a"], {}]}}, "output": ["MODEL", "CLIP", "VAE"]},
    "Sampler": {
        "input": {
            "required": {
                "model": ["MODEL"],
                "seed": ["INT", {"default": 0}],
                "positive": ["CONDITIONING"],
                "negative": ["CONDITIONING"],
            }
        },
        "output": ["LATENT"],
    },
    "Decode": {"input": {"required": {"vae": ["VAE"]}}, "output": ["IMAGE"]},
    "PrimitiveInt": {"input": {"required": {"value": ["INT", {"control_after_generate": True}]}}, "output": ["INT"]},
}
MODEL, CLIP, VAE = ((1, 1, 0, 10, 0, "MODEL"), (2, 1, 1, 10, 1, "CLIP"), (3, 1, 2, 10, 2, "VAE"))
SENT: list[Slot] = [("anything", "MODEL", 1), ("anything11", "CLIP", 2), ("anything12", "VAE", 3)]


def ue(**settings: Any) -> dict[str, Any]:
    return {"ue_properties": {"version": "7.0", "widget_ue_connectable": {}, **settings}}


def loader(node_id: int = 1, **more: Any) -> dict[str, Any]:
    outputs = [(kind, kind) for kind in ("MODEL", "CLIP", "VAE")]
    return node(node_id, "Loader", outputs=outputs, values=["a"], **{"properties": ue(), **more})


def everywhere(
    node_id: int, slots: Sequence[Slot], *, kind: str = "Anything Everywhere", **more: Any
) -> dict[str, Any]:
    return node(node_id, kind, slots, (), **{"properties": ue(), **more})


def encode(node_id: int, **more: Any) -> dict[str, Any]:
    return node(
        node_id,
        "CLIPTextEncode",
        [("clip", "CLIP", None)],
        [("CONDITIONING", "CONDITIONING")],
        ["a"],
        **{"properties": ue(), **more},
    )


def sampler(node_id: int, **more: Any) -> dict[str, Any]:
    slots: list[Slot] = [
        ("model", "MODEL", None),
        ("positive", "CONDITIONING", None),
        ("negative", "CONDITIONING", None),
    ]
    return node(node_id, "Sampler", slots, [("LATENT", "LATENT")], [5], **{"properties": ue(), **more})


def converted(nodes: Sequence[Any], links: Sequence[Sequence[Any]] = (), **more: Any) -> dict[str, dict[str, Any]]:
    file = workflow(nodes, (), **more) | {"links": [list(link) for link in links]}
    return {node_id: found["inputs"] for node_id, found in convert_workflow(file, KNOWN).items()}


def test_value_goes_to_every_free_input_of_its_type() -> None:
    found = converted([loader(), everywhere(10, SENT), encode(2), encode(3), sampler(4)], [MODEL, CLIP, VAE])
    assert [found["2"]["clip"], found["3"]["clip"], found["4"]["model"]] == [["1", 1], ["1", 1], ["1", 0]]
    # The pack does not need to be installed.
    assert "10" not in found


def test_connected_and_refused_inputs_are_not_changed() -> None:
    linked = encode(3) | {"inputs": [{"name": "clip", "type": "CLIP", "link": 9}]}
    refusing = encode(5, properties=ue(input_ue_unconnectable={"clip": True}))
    closed = encode(6, properties={**ue(), "rejects_ue_links": True})
    nodes = [loader(), loader(7), everywhere(10, SENT), linked, refusing, closed]
    found = converted(nodes, [CLIP, (9, 7, 1, 3, 0, "CLIP")])
    assert [found[node_id].get("clip") for node_id in ("3", "5", "6")] == [["7", 1], None, None]


@pytest.mark.parametrize(
    ("settings", "receivers"),
    [
        ({"title_regex": "^one$"}, {"2"}),
        ({"title_regex": "^one$", "title_regex_invert": True}, {"3"}),
        ({"input_regex": "^cl"}, {"2", "3"}),
        ({"input_regex": "vae"}, set()),
        ({"group_restricted": 1}, {"2"}),
        ({"group_restricted": 2}, {"3"}),
        ({"group_regex": "^In"}, {"2"}),
        ({"group_regex": "^In", "group_regex_invert": True}, {"3"}),
        ({"color_restricted": 1}, {"2"}),
        ({"color_restricted": 2}, {"3"}),
        ({"title_regex": "("}, {"2", "3"}),
    ],
)
def test_restrictions_choose_the_receivers(settings: dict[str, Any], receivers: set[str]) -> None:
    size: dict[str, Any] = {"size": [300, 200]}
    nodes = [
        loader(pos=[-900, 0], **size),
        everywhere(10, SENT, properties=ue(**settings), pos=[100, 100], color="#111", **size),
        encode(2, title="one", pos=[100, 500], color="#111", **size),
        encode(3, title="two", pos={"0": 2000, "1": 500}, **size),
    ]
    groups = [{"title": "Inside", "bounding": [0, 0, 800, 1500]}, {"title": "Far", "bounding": [1900, 0, 800, 800]}]
    found = converted(nodes, [CLIP], groups=groups)
    assert {node_id for node_id in ("2", "3") if "clip" in found[node_id]} == receivers


def test_patterns_of_older_versions_are_fields() -> None:
    plain: dict[str, Any] = {"properties": {}}
    old = everywhere(21, [("anything", "*", 8)], kind="Anything Everywhere?", values=["Second", ".*", ".*"], **plain)
    three = everywhere(10, SENT, kind="Anything Everywhere3", **plain)
    nodes = [
        loader(**plain),
        loader(20, **plain),
        three,
        old,
        encode(2, **plain),
        encode(3, title="Second one", **plain),
    ]
    found = converted(nodes, [CLIP, (8, 20, 1, 21, 0, "CLIP")])
    assert (found["2"]["clip"], found["3"]["clip"]) == (["1", 1], ["20", 1])


def test_highest_priority_wins_and_a_tie_sends_nothing() -> None:
    first = everywhere(10, SENT)
    same = everywhere(11, [("anything", "MODEL", 8)])
    higher = everywhere(12, [("anything", "CLIP", 9)], properties=ue(priority=50))
    links = [MODEL, CLIP, (8, 20, 0, 11, 0, "MODEL"), (9, 20, 1, 12, 0, "CLIP")]
    found = converted([loader(), loader(20), first, same, higher, encode(2), sampler(4)], links)
    assert (found["2"]["clip"], found["4"].get("model")) == (["20", 1], None)


@pytest.mark.parametrize(
    ("kind", "labels", "rule"),
    [
        ("Anything Everywhere", ("positive", "negative"), 0),
        ("Anything Everywhere", ("pos", "neg"), 1),
        ("Anything Everywhere", ("itive", "gative"), 2),
        ("Anything Everywhere", ("^pos", "^neg"), 4),
        ("Prompts Everywhere", (None, None), 0),
    ],
)
def test_two_values_of_one_type_are_distinguished_by_name(kind: str, labels: tuple[Any, Any], rule: int) -> None:
    slots: list[Slot] = [("+ve", "CONDITIONING", 5), ("-ve", "CONDITIONING", 6)]
    sender = everywhere(11, slots, kind=kind, properties=ue(repeated_type_rule=rule))
    for slot, label in zip(sender["inputs"], labels, strict=True):
        slot["label"] = label
    links = [(5, 2, 0, 11, 0, "CONDITIONING"), (6, 3, 0, 11, 1, "CONDITIONING")]
    found = converted([encode(2), encode(3), sender, sampler(4)], links)
    assert (found["4"]["positive"], found["4"]["negative"]) == (["2", 0], ["3", 0])


def test_seed_goes_to_fields_that_accept_it() -> None:
    seed = node(12, "Seed Everywhere", outputs=[("INT", "INT")], values=[77, "randomize"], properties=ue())
    accepting = sampler(4, properties=ue(widget_ue_connectable={"seed": True}))
    found = converted([seed, accepting, sampler(5)])
    assert (found["4"]["seed"], found["5"]["seed"], found["12"]) == (["12", 0], 5, {"value": 77})


def test_outputs_of_a_node_are_broadcast_unless_they_are_silent() -> None:
    properties = {**ue(output_not_broadcasting={"VAE": True}), "ue_convert": True}
    found = converted([loader(properties=properties), encode(2), node(5, "Decode", [("vae", "VAE", None)])])
    assert (found["2"]["clip"], found["5"]) == (["1", 1], {})


def test_value_passes_bypassed_nodes_and_does_not_come_from_muted_ones() -> None:
    lora = node(30, "Lora", [("m", "MODEL", 1), ("c", "CLIP", 2)], [("MODEL", "MODEL"), ("CLIP", "CLIP")], mode=4)
    links = [(1, 1, 0, 30, 0, "MODEL"), (2, 1, 1, 30, 1, "CLIP"), (8, 30, 1, 10, 0, "CLIP"), (9, 20, 2, 10, 1, "VAE")]
    sender = everywhere(10, [("anything", "CLIP", 8), ("a2", "VAE", 9)])
    nodes = [loader(), loader(20, mode=2), lora, sender, encode(2), node(5, "Decode", [("vae", "VAE", None)])]
    found = converted(nodes, links)
    assert (found["2"]["clip"], found["5"]) == (["1", 1], {})


def test_values_stay_within_their_subgraph_and_reach_its_output() -> None:
    inside = [encode(7), everywhere(8, [("anything", "CLIP", 1)]), everywhere(9, [("anything", "CONDITIONING", 2)])]
    outputs = [("CONDITIONING", "CONDITIONING", list[int]())]
    definition = subgraph("sub", inside, [(1, -10, 0, 8, 0), (2, 7, 0, 9, 0)], [("clip", "CLIP", [1])], outputs)
    for link, kind in zip(definition["links"], ("CLIP", "CONDITIONING"), strict=True):
        link["type"] = kind
    holder = node(6, "sub", [("clip", "CLIP", None)], [("CONDITIONING", "CONDITIONING")], properties=ue())
    linked = sampler(4)
    linked["inputs"][1]["link"] = 5
    found = converted(
        [loader(), everywhere(10, SENT), holder, linked],
        [CLIP, (5, 6, 0, 4, 1, "CONDITIONING")],
        definitions={"subgraphs": [definition]},
    )
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
    nodes = [loader(), everywhere(10, SENT, properties=ue(title_regex=pattern)), encode(2, title="a" * 100)]
    with pytest.raises(GraphError, match="too complex"):
        converted(nodes, [CLIP])


def test_searches_of_a_workflow_are_limited_together() -> None:
    receivers = [encode(node_id, title=f"{node_id} {'a' * 90}") for node_id in range(100, 400)]
    with pytest.raises(GraphError, match="take too long"):
        converted([loader(), everywhere(10, SENT, properties=ue(title_regex=".*.*b")), *receivers], [CLIP])


def test_too_many_senders_are_refused() -> None:
    senders = [everywhere(node_id, [("anything", "CLIP", 2)]) for node_id in range(100, 601)]
    with pytest.raises(GraphError, match="more than 500 Use Everywhere nodes"):
        converted([loader(), *senders], [CLIP])
