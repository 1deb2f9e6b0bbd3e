"""Random seeds: -1 in a seed input of a graph means a new random seed."""

import secrets

from comfyrelay.comfyui.graphs.graph import Graph

RANDOM = -1
# Every node with a seed accepts 31 bits.
_SEED_BITS = 31


def draw_seeds(graph: Graph) -> tuple[Graph, dict[str, int]]:
    """Replace each seed input of -1 by a random number. Returns the graph, and the numbers by `<node id>.<input>`.

    Seed inputs are inputs whose names end with `seed`, such as `noise_seed`.
    """
    drawn: dict[str, int] = {}
    filled = dict(graph)
    for node_id, node in graph.items():
        seeds = {
            name: secrets.randbits(_SEED_BITS) for name, value in node["inputs"].items() if _is_random(name, value)
        }
        if seeds:
            filled[node_id] = {**node, "inputs": {**node["inputs"], **seeds}}
            drawn |= {f"{node_id}.{name}": seed for name, seed in seeds.items()}
    return filled, drawn


def _is_random(name: str, value: object) -> bool:
    return type(value) is int and value == RANDOM and name.endswith("seed")
