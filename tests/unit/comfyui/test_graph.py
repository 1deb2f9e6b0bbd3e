"""Graphs are validated, and their placeholders are filled in."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.comfyui.graphs.graph import Graph, load_graph, placeholders_in, replace_placeholders
from comfyrelay.errors import GraphError


def one_node(**inputs: object) -> Graph:
    return {"1": {"class_type": "Text", "inputs": inputs}}


def filled(value: object, **values: object) -> Any:
    return replace_placeholders(one_node(value=value), {f"{{{k}}}": v for k, v in values.items()})["1"]["inputs"][
        "value"
    ]


def test_graph_is_read() -> None:
    graph = {"1": {"class_type": "LoadImage", "inputs": {"image": "ü.png"}, "_meta": {"title": "In"}}}
    text = json.dumps(graph, ensure_ascii=False)
    assert load_graph(text) == graph
    assert load_graph(text.encode()) == graph
    assert load_graph(b"\xef\xbb\xbf" + text.encode()) == graph


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"\x89PNG\r\n\x1a\n", "ComfyClient.load"),
        ("[" * 200_000, "nested too deeply"),
        ('{"1": {"class_type": "A", "inputs": {"x": NaN}}}', "NaN is not a JSON number"),
        ("[]", "not a ComfyUI workflow"),
        ("{}", "has no nodes"),
        ('{"a": 1}', "not a ComfyUI workflow"),
        ('{"a": {"b": 1}, "c": []}', "not a ComfyUI workflow"),
        ('{"1": {"class_type": "A", "inputs": {}}, "2": 5}', 'Node "2" is not a JSON object'),
        ('{"1": {"inputs": {}}}', 'Node "1" has no "class_type"'),
        ('{"1": {"class_type": "", "inputs": {}}}', 'Node "1" has no "class_type"'),
        ('{"1": {"class_type": "A"}}', 'Node "1" has no "inputs"'),
        ('{"1": {"class_type": "A", "inputs": []}}', 'Node "1" has no "inputs"'),
    ],
)
def test_invalid_graph_is_refused_with_the_reason(text: str | bytes, reason: str) -> None:
    with pytest.raises(GraphError, match=reason):
        load_graph(text)


def test_editor_file_is_refused_with_advice() -> None:
    with pytest.raises(GraphError, match=r'"Export \(API\)", or convert it'):
        load_graph('{"last_node_id": 3, "nodes": [], "links": [], "version": 0.4}')


@pytest.mark.parametrize("value", [42, 0.5, True, False, None, "a cat", ["a", "b"]])
def test_text_equal_to_the_placeholder_becomes_the_typed_value(value: object) -> None:
    result = filled("{x}", x=value)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("value", "text"), [("cat", "a cat!"), (3, "a 3!"), (0.5, "a 0.5!"), (True, "a true!"), (None, "a !")]
)
def test_value_inside_a_text_is_formatted(value: object, text: str) -> None:
    assert filled("a {x}!", x=value) == text


@pytest.mark.parametrize(
    "prompt",
    [
        'say "hi"',
        "{braces} }{",
        "back\\slash \\1 \\g<0>",
        "two\nlines\r\n",
        "🐈‍⬛ café",
        "$1 %s {0}",
        '"}, {"a": "',
    ],
)
def test_prompt_is_not_altered(prompt: str) -> None:
    assert filled("{x}", x=prompt) == prompt
    assert filled("<{x}>", x=prompt) == f"<{prompt}>"
    graph = replace_placeholders(one_node(value="<{x}>"), {"{x}": prompt})
    assert load_graph(json.dumps(graph)) == graph


def test_value_is_not_searched_for_placeholders_again() -> None:
    assert filled("{x} and {y}", x="{y}", y="{x}") == "{y} and {x}"
    assert filled("{x}", x="{y}", y="no") == "{y}"


def test_longest_matching_placeholder_is_replaced() -> None:
    graph = one_node(a="IMG2.png", b="IMG.png", c="IMG2")
    values = {"IMG": "first", "IMG2": "second"}
    assert replace_placeholders(graph, values)["1"]["inputs"] == {
        "a": "second.png",
        "b": "first.png",
        "c": "second",
    }


def test_only_values_of_inputs_are_replaced() -> None:
    graph = {
        "X": {"class_type": "X", "inputs": {"X": "X", "link": ["X", 0], "n": 1}, "_meta": {"title": "X"}},
    }
    assert replace_placeholders(graph, {"X": "new"}) == {
        "X": {"class_type": "X", "inputs": {"X": "new", "link": ["X", 0], "n": 1}, "_meta": {"title": "X"}},
    }


def test_values_inside_lists_and_objects_are_replaced() -> None:
    value = {"__value__": ["{x}", 1, {"{x}": "a {x}"}]}
    assert filled(value, x="cat") == {"__value__": ["cat", 1, {"{x}": "a cat"}]}


def test_original_graph_is_not_changed() -> None:
    graph = {"1": {"class_type": "A", "inputs": {"a": "{x}", "l": ["2", 0]}, "_meta": {"title": "t"}}}
    before = json.dumps(graph)
    new = replace_placeholders(graph, {"{x}": ["list"]})
    new["1"]["inputs"]["l"][0] = "9"
    new["1"]["_meta"]["title"] = "changed"
    assert json.dumps(graph) == before


@pytest.mark.parametrize("values", [{}, {"": "nothing"}])
def test_graph_without_placeholders_is_unchanged(values: dict[str, object]) -> None:
    graph = one_node(a="", b="text")
    assert replace_placeholders(graph, values) == graph
    assert placeholders_in(graph, values) == set()


def test_used_placeholders_are_listed() -> None:
    graph = one_node(a="IMG2.png", b={"deep": ["a {x}"]}, link=["{y}", 0])
    assert placeholders_in(graph, ["IMG", "IMG2", "{x}", "{y}", "{z}"]) == {"IMG2", "{x}"}


texts = st.text(st.sampled_from("ab{}xy\\\"'\n🐈"), max_size=8)
literals = st.recursive(
    texts | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
links = st.tuples(st.sampled_from(["1", "2", "{x}"]), st.integers(0, 3)).map(list)
nodes = st.fixed_dictionaries(
    {"class_type": texts.filter(bool), "inputs": st.dictionaries(texts, literals | links, max_size=4)},
    optional={"_meta": st.fixed_dictionaries({"title": texts})},
)
graphs = st.dictionaries(texts, nodes, min_size=1, max_size=4)
values = st.dictionaries(st.sampled_from(["{x}", "{y}", "a", "ab", "\\"]), texts | st.integers() | st.booleans())


def shape(value: Any) -> Any:
    """Return the graph without its literal values."""
    if isinstance(value, dict):
        return {key: shape(part) for key, part in value.items()}
    return [shape(part) for part in value] if isinstance(value, list) else None


@given(graphs, values)
def test_replacing_placeholders_keeps_the_structure(graph: Graph, values_by_placeholder: dict[str, object]) -> None:
    new = replace_placeholders(graph, values_by_placeholder)
    assert shape(new) == shape(graph)
    assert [node["class_type"] for node in new.values()] == [node["class_type"] for node in graph.values()]
    assert load_graph(json.dumps(new)) == new
    # Only the listed placeholders are replaced.
    used = placeholders_in(graph, values_by_placeholder)
    if not used:
        assert new == graph
    assert replace_placeholders(graph, {name: values_by_placeholder[name] for name in used}) == new


@pytest.mark.parametrize("text", [b"", b" \n", "\ufeff", b"\xef\xbb\xbf"])
def test_empty_file_is_reported_as_empty(text: str | bytes) -> None:
    with pytest.raises(GraphError, match=r"^The file is empty: it contains no workflow\.$"):
        load_graph(text)
