"""Small editor files with nodes of the pack Use Everywhere, which send values without links."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.editor_files import Slot, node, subgraph, workflow

MODEL, CLIP, VAE = ((1, 1, 0, 10, 0, "MODEL"), (2, 1, 1, 10, 1, "CLIP"), (3, 1, 2, 10, 2, "VAE"))
SENT: list[Slot] = [("anything", "MODEL", 1), ("anything11", "CLIP", 2), ("anything12", "VAE", 3)]
CLIP_SENT: list[Slot] = [("anything", "CLIP", 2)]
CLIP_LINK = (2, 1, 1, 10, 0, "CLIP")
SAMPLER_VALUES = [5, "fixed", 20, 8.0, "euler", "normal", 1.0]
RESTRICTIONS: Sequence[Mapping[str, Any]] = (
    {"title_regex": "^one$"},
    {"title_regex": "^one$", "title_regex_invert": True},
    {"input_regex": "^cl"},
    {"input_regex": "vae"},
    {"group_restricted": 1},
    {"group_restricted": 2},
    {"group_regex": "^In"},
    {"group_regex": "^In", "group_regex_invert": True},
    {"color_restricted": 1},
    {"color_restricted": 2},
)


def file_of(nodes: Sequence[Any], links: Sequence[Sequence[Any]] = (), **more: Any) -> dict[str, Any]:
    """Return a file; a link is id, origin, slot, target, slot, type."""
    placed = [{"pos": [400 * at, 0], "size": [300, 200], "order": at, **each} for at, each in enumerate(nodes)]
    return workflow(placed, (), **more) | {"links": [list(link) for link in links]}


def ue(**settings: Any) -> dict[str, Any]:
    return {"ue_properties": {"version": "7.0", "widget_ue_connectable": {}, **settings}}


def loader(node_id: int = 1, **more: Any) -> dict[str, Any]:
    outputs = [(kind, kind) for kind in ("MODEL", "CLIP", "VAE")]
    return node(node_id, "CheckpointLoaderSimple", outputs=outputs, values=["a"], **{"properties": ue(), **more})


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
        *(("model", "MODEL", None), ("positive", "CONDITIONING", None), ("negative", "CONDITIONING", None)),
        ("latent_image", "LATENT", None),
    ]
    return node(node_id, "KSampler", slots, [("LATENT", "LATENT")], SAMPLER_VALUES, **{"properties": ue(), **more})


def decode(node_id: int, **more: Any) -> dict[str, Any]:
    slots: list[Slot] = [("samples", "LATENT", None), ("vae", "VAE", None)]
    return node(node_id, "VAEDecode", slots, **{"properties": ue(), **more})


def types() -> dict[str, Any]:
    nodes = [loader(), everywhere(10, SENT), encode(2), encode(3), sampler(4), decode(5)]
    return file_of(nodes, [MODEL, CLIP, VAE])


def connected_and_refusing() -> dict[str, Any]:
    linked = encode(3) | {"inputs": [{"name": "clip", "type": "CLIP", "link": 9}]}
    refusing = encode(5, properties=ue(input_ue_unconnectable={"clip": True}))
    closed = encode(6, properties={**ue(), "rejects_ue_links": True})
    nodes = [loader(), loader(7), everywhere(10, CLIP_SENT), linked, refusing, closed]
    return file_of(nodes, [CLIP_LINK, (9, 7, 1, 3, 0, "CLIP")])


def restricted(settings: Mapping[str, Any]) -> dict[str, Any]:
    nodes = [
        loader(pos=[-900, 0]),
        everywhere(10, CLIP_SENT, properties=ue(**settings), pos=[100, 100], color="#111"),
        encode(2, title="one", pos=[100, 500], color="#111"),
        encode(3, title="two", pos={"0": 2000, "1": 500}),
    ]
    groups = [{"title": "Inside", "bounding": [0, 0, 800, 1500]}, {"title": "Far", "bounding": [1900, 0, 800, 800]}]
    return file_of(nodes, [CLIP_LINK], groups=groups)


def older() -> dict[str, Any]:
    """A file of the pack before version 7, in which the patterns are fields."""
    plain: dict[str, Any] = {"properties": {"widget_ue_connectable": {}}}
    nodes = [
        loader(**plain),
        loader(20, **plain),
        everywhere(10, SENT, kind="Anything Everywhere3", **plain),
        everywhere(21, [("anything", "*", 8)], kind="Anything Everywhere?", values=["Second", ".*", ".*"], **plain),
        encode(2, **plain),
        encode(3, title="Second one", **plain),
    ]
    return file_of(nodes, [MODEL, CLIP, VAE, (8, 20, 1, 21, 0, "CLIP")])


def priorities() -> dict[str, Any]:
    """Two senders of models tie; of those that send a CLIP, one has a higher priority."""
    same = everywhere(11, [("anything", "MODEL", 8)])
    higher = everywhere(12, [("anything", "CLIP", 9)], properties=ue(priority=50))
    links = [MODEL, CLIP, VAE, (8, 20, 0, 11, 0, "MODEL"), (9, 20, 1, 12, 0, "CLIP")]
    return file_of([loader(), loader(20), everywhere(10, SENT), same, higher, encode(2), sampler(4)], links)


# Kind of the sender, labels of its two inputs, and how a name chooses its receivers.
REPEATED: Sequence[tuple[str, tuple[str | None, str | None], int]] = (
    ("Anything Everywhere", ("positive", "negative"), 0),
    ("Anything Everywhere", ("pos", "neg"), 1),
    ("Anything Everywhere", ("itive", "gative"), 2),
    ("Anything Everywhere", ("^pos", "^neg"), 4),
    ("Prompts Everywhere", (None, None), 0),
)


def repeated(kind: str, labels: tuple[str | None, str | None], rule: int) -> dict[str, Any]:
    """A sender of two values of one type."""
    names = ("positive", "negative") if kind == "Prompts Everywhere" else ("anything", "anything11")
    slots: list[Slot] = [(name, "CONDITIONING", link) for link, name in enumerate(names, 5)]
    sender = everywhere(11, slots, kind=kind, properties=ue(repeated_type_rule=rule))
    for slot, label in zip(sender["inputs"], labels, strict=True):
        slot["label"] = label
    links = [(5, 2, 0, 11, 0, "CONDITIONING"), (6, 3, 0, 11, 1, "CONDITIONING")]
    return file_of([encode(2), encode(3), sender, sampler(4)], links)


def seeds() -> dict[str, Any]:
    seed = node(12, "Seed Everywhere", outputs=[("INT", "INT")], values=[77, "randomize"], properties=ue())
    return file_of([seed, sampler(4, properties=ue(widget_ue_connectable={"seed": True})), sampler(5)])


def own_outputs() -> dict[str, Any]:
    """A loader that sends its outputs, except for its VAE."""
    properties = {**ue(output_not_broadcasting={"VAE": True}), "ue_convert": True}
    return file_of([loader(properties=properties), encode(2), decode(5)])


def bypassed_and_muted() -> dict[str, Any]:
    """A CLIP comes through a bypassed node, and a VAE from a muted one."""
    lora = node(30, "LoraLoader", [("model", "MODEL", 1), ("clip", "CLIP", 2)], [("MODEL", "MODEL"), ("CLIP", "CLIP")])
    lora |= {"mode": 4, "widgets_values": ["a", 1.0, 1.0]}
    links = [(1, 1, 0, 30, 0, "MODEL"), (2, 1, 1, 30, 1, "CLIP"), (8, 30, 1, 10, 0, "CLIP"), (9, 20, 2, 10, 1, "VAE")]
    sender = everywhere(10, [("anything", "CLIP", 8), ("a2", "VAE", 9)])
    return file_of([loader(), loader(20, mode=2), lora, sender, encode(2), decode(5)], links)


def inside_subgraph() -> dict[str, Any]:
    inside = [encode(7), everywhere(8, CLIP_SENT), everywhere(9, [("anything", "CONDITIONING", 2)])]
    inside[1]["inputs"][0]["link"] = 1
    outputs = [("CONDITIONING", "CONDITIONING", list[int]())]
    kind = "0b6f1c9e-8a55-4f0e-9d2a-3c1f6f1f7a10"
    definition = subgraph(kind, inside, [(1, -10, 0, 8, 0), (2, 7, 0, 9, 0)], [("clip", "CLIP", [1])], outputs)
    definition |= {"name": "Encode", "version": 1, "state": {}, "widgets": [], "groups": []}
    definition |= {
        "inputNode": {"id": -10, "bounding": [0, 0, 0, 0]},
        "outputNode": {"id": -20, "bounding": [0, 0, 0, 0]},
    }
    for link, type_ in zip(definition["links"], ("CLIP", "CONDITIONING"), strict=True):
        link["type"] = type_
    holder = node(6, kind, [("clip", "CLIP", None)], [("CONDITIONING", "CONDITIONING")], properties=ue())
    linked = sampler(4)
    linked["inputs"][1]["link"] = 5
    return file_of(
        [loader(), everywhere(10, SENT), holder, linked],
        [MODEL, CLIP, VAE, (5, 6, 0, 4, 1, "CONDITIONING")],
        definitions={"subgraphs": [definition]},
    )


def all_files() -> dict[str, dict[str, Any]]:
    """Return every file by name."""
    found = (types, connected_and_refusing, older, priorities, seeds, own_outputs, bypassed_and_muted, inside_subgraph)
    return {
        **{make.__name__: make() for make in found},
        **{f"restricted {settings}": restricted(settings) for settings in RESTRICTIONS},
        **{f"repeated {case}": repeated(*case) for case in REPEATED},
    }
