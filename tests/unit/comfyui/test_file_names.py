"""Placeholders in the file names of savers are filled in for each job, as in the editor."""

from datetime import datetime
from typing import Any

import pytest

from comfyrelay.comfyui.editor.convert import convert_workflow
from comfyrelay.comfyui.graphs.file_names import fill_file_names
from comfyrelay.comfyui.graphs.nodes import with_prefix
from comfyrelay.comfyui.pool.ticket import make_ticket
from tests.support.editor_files import DEFINITIONS, empty, node, save, subgraph, workflow

# The editor uses local time.
AT = datetime(2026, 3, 7, 9, 5, 2).astimezone()


def named(prefix: str, **more: Any) -> str:
    graph = {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "scale": 2.0, "label": 'a/b:c"', "image": ["3", 0]}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": prefix}} | more,
        "3": {"class_type": "Loader", "inputs": {"on": True}, "_meta": {"title": "My loader"}},
    }
    result: str = fill_file_names(graph, AT)["2"]["inputs"]["filename_prefix"]
    return result


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("%date:yyyy-MM-dd%", "2026-03-07"),
        ("%date:yy-M-d h%", "26-3-7 9"),
        # The editor reads a period as the end of a node's name.
        ("%date:yyyy.MM%", "%date:yyyy.MM%"),
        ("%date:hhmmss%_x", "090502_x"),
        ("%date:hh:mm%", "09_05"),
        ("%date:yyyy/MM%/x", "2026/03/x"),
        ("%EmptyImage.width%", "64"),
        ("%EmptyImage.scale%", "2"),
        ("%EmptyImage.label%", "a_b_c_"),
        ("%1.width%", "64"),
        ("%My loader.on%", "true"),
        ("%width%x%height%", "%width%x%height%"),
        ("%Nobody.width%", "%Nobody.width%"),
        ("%EmptyImage.image%", "%EmptyImage.image%"),
        ("100% sure", "100% sure"),
    ],
)
def test_texts_are_filled_in_by_the_rules_of_the_editor(prefix: str, expected: str) -> None:
    assert named(prefix) == expected


def test_savers_that_fill_in_their_own_texts_are_not_changed() -> None:
    assert named("%date:yyyy%", class_type="Image Saver") == "%date:yyyy%"


def test_long_value_does_not_make_a_name_that_cannot_be_saved() -> None:
    graph = {
        "1": {"class_type": "Words", "inputs": {"text": "fox " * 500}},
        "2": {"class_type": "SaveImage", "inputs": {"filename_prefix": "%Words.text%"}},
    }
    assert len(fill_file_names(graph, AT)["2"]["inputs"]["filename_prefix"]) == 100


def test_folder_of_a_date_is_dropped_after_it_is_filled_in() -> None:
    graph = {"2": {"class_type": "SaveImage", "inputs": {"filename_prefix": "%date:yyyy/MM%"}}}
    sent = with_prefix(fill_file_names(graph, AT), "run")
    assert sent["2"]["inputs"]["filename_prefix"] == "run/03"


def test_pool_job_has_the_date_when_it_was_enqueued() -> None:
    graph = {"2": {"class_type": "SaveImage", "inputs": {"filename_prefix": "%date:yyyy-MM-dd%"}}}
    ticket = make_ticket(graph, {}, sequence=1, created_at=AT)
    assert b'"2026-03-07"' in ticket.graph


class TestConversion:
    def converted(self, prefix: str, *nodes: dict[str, Any], links: Any = (), **more: Any) -> str:
        saver = save(2, 1) | {"widgets_values": [prefix]}
        graph = convert_workflow(workflow([saver, *nodes], [(1, 1, 0, 2, 0), *links], **more), DEFINITIONS)
        result: str = graph["2"]["inputs"]["filename_prefix"]
        return result

    def test_node_is_found_by_its_own_name_before_its_title(self) -> None:
        titled = empty(7, title="mine")
        renamed = empty(1, properties={"Node name for S&R": "mine"})
        assert self.converted("%mine.width%", titled, renamed) == "%1.width%"
        assert self.converted("%mine.width%", titled, empty()) == "%7.width%"

    def test_date_is_kept_for_each_job(self) -> None:
        assert self.converted("%date:yyyy%_%Nobody.width%", empty()) == "%date:yyyy%_%Nobody.width%"

    def test_value_of_a_node_that_does_not_run_is_filled_in(self) -> None:
        muted = empty(7, title="off", mode=2)
        primitive = node(8, "PrimitiveNode", values=["a:b", "fixed"], title="name")
        assert self.converted("%off.width%_%name.value%", empty(), muted, primitive) == "64_a_b"

    def test_node_inside_a_subgraph_is_found(self) -> None:
        inside = subgraph("sub", [empty(5, title="inner")], [(9, 5, 0, -20, 0)], [], [("IMAGE", "IMAGE", [9])])
        holder = node(1, "sub")
        assert self.converted("%inner.height%", holder, definitions={"subgraphs": [inside]}) == "%1:5.height%"
