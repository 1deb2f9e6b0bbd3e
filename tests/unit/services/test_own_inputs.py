"""For a tenant graph, only the values that an item changes are checked against the policy, and only once."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.graphs.policy import GraphPolicy
from comfyrelay.errors import GraphNotAllowed
from comfyrelay.services.jobs.submission.own_inputs import OwnInputs

GRAPH = {
    "1": {"class_type": "Load", "inputs": {"model": "x.safetensors", "size": "{{SIZE}}"}},
    "2": {"class_type": "Draw", "inputs": {"text": "{{TEXT}}", "other": "as it is", "clip": ["1", 0]}},
    "3": {"class_type": "Join", "inputs": {"both": ["{{TEXT}}", {"size": "of {{SIZE}}"}], "image": "{{IMAGE}}"}},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordingPolicy(GraphPolicy):
    """A policy that records its calls."""

    checked: list[dict[str, Any]] = field(default_factory=list)

    def check(
        self,
        graph: Graph,
        *,
        own: Collection[str],
        object_info: Mapping[str, Any] | None = None,
        is_effect: bool = False,
    ) -> None:
        self.checked.extend(node["inputs"] for node in graph.values())
        GraphPolicy.check(self, graph, own=own, object_info=object_info, is_effect=is_effect)


def inputs(policy: GraphPolicy) -> OwnInputs:
    return OwnInputs(policy, GRAPH, texts=["{{TEXT}}", "{{SIZE}}"], files=["{{IMAGE}}"])


def test_only_changed_inputs_are_checked_once_per_set_of_values() -> None:
    policy = RecordingPolicy()
    own = inputs(policy)
    for number in range(100):
        own.check({"{{TEXT}}": f"cat {number % 2}", "{{SIZE}}": 7})
    assert policy.checked == [
        {"size": 7},
        {"text": "cat 0"},
        {"both": ["cat 0", {"size": "of 7"}]},
        {"text": "cat 1"},
        {"both": ["cat 1", {"size": "of 7"}]},
    ]


def test_number_and_digits_are_different_values() -> None:
    policy = RecordingPolicy()
    own = inputs(policy)
    for size in (7, "7", True, 1, None):
        own.check({"{{SIZE}}": size})
    assert [inputs["size"] for inputs in policy.checked if inputs.keys() == {"size"}] == [7, "7", True, 1, None]


def test_refused_input_is_refused_again() -> None:
    own = inputs(GraphPolicy())
    own.check({"{{TEXT}}": "a cat"})
    for _ in range(2):
        with pytest.raises(GraphNotAllowed, match=r"Draw \(2\): input 'text' names '/etc/passwd'"):
            own.check({"{{TEXT}}": "/etc/passwd"})
    own.check({"{{TEXT}}": "a cat"})
