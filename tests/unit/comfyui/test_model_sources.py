"""A message about a missing model names the source given by the author of the workflow."""

from typing import Any

import pytest

from comfyrelay.comfyui.editor.convert import convert_workflow
from comfyrelay.comfyui.graphs.explain import explain_refusal
from comfyrelay.comfyui.graphs.model_sources import read_models, source_of, sources_in
from comfyrelay.comfyui.graphs.preflight import graph_problems
from tests.support.editor_files import node, workflow

URL = "https://example.com/sd/base.safetensors"
SOURCE = f"{URL}, folder checkpoints"
MODEL = {"name": "base.safetensors", "url": URL, "directory": "checkpoints", "hash": "ab", "hash_type": "SHA256"}
KNOWN = {
    "Loader": {"input": {"required": {"ckpt_name": [["other.safetensors"], {}]}}, "output": [], "output_node": True}
}


def graph_with(*models: Any, value: str = "base.safetensors") -> dict[str, Any]:
    loader = node(1, "Loader", values=[value], properties={"models": list(models)})
    return convert_workflow(workflow([loader]), KNOWN)


def test_converted_graph_keeps_the_models_of_its_author() -> None:
    assert graph_with(MODEL)["1"]["_meta"] == {"title": "Loader", "models": [MODEL]}
    assert graph_with()["1"]["_meta"] == {"title": "Loader"}


@pytest.mark.parametrize("value", ["base.safetensors", "sd/base.safetensors", "sd\\base.safetensors"])
def test_missing_model_is_reported_with_its_source(value: str) -> None:
    graph = graph_with(MODEL, value=value)
    [problem] = graph_problems(graph, KNOWN)
    words = f"is not installed on the server (input 'ckpt_name'); the workflow's author got it from {SOURCE}"
    assert problem.text.endswith(words)
    extra = {"input_name": "ckpt_name", "received_value": value}
    errors = [{"type": "value_not_in_list", "extra_info": extra}]
    refused = explain_refusal({"node_errors": {"1": {"class_type": "Loader", "errors": errors}}}, graph=graph)
    assert words in refused.detail


@pytest.mark.parametrize("url", ["http://example.com/a", "file:///etc/passwd", "javascript:alert(1)", "", None, 5])
def test_only_https_addresses_are_shown(url: Any) -> None:
    [problem] = graph_problems(graph_with({**MODEL, "url": url}), KNOWN)
    assert problem.text.endswith("(input 'ckpt_name')")


def test_model_without_a_folder_has_only_its_address() -> None:
    assert sources_in(graph_with({"name": "base.safetensors", "url": URL})) == {"base.safetensors": URL}


def test_other_models_of_the_node_are_not_confused() -> None:
    sources = sources_in(graph_with({**MODEL, "name": "vae.safetensors"}))
    assert source_of(sources, "base.safetensors") is None
    assert source_of(sources, 5) is None


@pytest.mark.parametrize(
    "models", [None, 5, "text", {}, [5, None, {}, {"name": ""}, {"name": "\0"}, {"name": "x" * 501}]]
)
def test_invalid_entries_are_ignored(models: Any) -> None:
    assert read_models({"models": models}) == []


def test_source_is_one_printable_line() -> None:
    sources = sources_in(graph_with({**MODEL, "directory": "check\npoints\x1b[31m"}))
    assert sources == {"base.safetensors": f"{URL}, folder check points"}


@pytest.mark.parametrize("meta", [None, 5, {"models": 5}])
def test_graph_of_another_program_may_have_any_metadata(meta: Any) -> None:
    assert sources_in({"1": {"class_type": "A", "inputs": {}, "_meta": meta}}) == {}
