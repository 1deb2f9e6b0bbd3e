"""Node definitions are packed deterministically, checked against their hash, and merged."""

import gzip
import hashlib
import json
from typing import Any

import pytest

from comfyrelay.comfyui.graphs import node_definitions
from comfyrelay.comfyui.graphs.node_definitions import Merging, merge, pack, unpack
from comfyrelay.errors import InvalidInput


def loader(*names: str, **more: Any) -> dict[str, Any]:
    return {"input": {"required": {"ckpt_name": [list(names), {}]}}, "output": ["MODEL"], **more}


def newer(*names: Any) -> dict[str, Any]:
    return {"input": {"optional": {"name": ["COMBO", {"options": list(names), "tooltip": "a"}]}}}


def sha256_of(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def test_hash_of_node_definitions_ignores_the_class_order() -> None:
    one, other = pack({"A": loader("a"), "B": {}}), pack({"B": {}, "A": loader("a")})
    assert one == other
    assert unpack(one.data, sha256=one.sha256) == {"A": loader("a"), "B": {}}


def test_inputs_of_a_class_keep_their_order() -> None:
    """The editor saves values by position."""
    packed = pack({"A": {"input": {"required": {"width": ["INT"], "batch": ["INT"]}}}})
    assert list(unpack(packed.data, sha256=packed.sha256)["A"]["input"]["required"]) == ["width", "batch"]


def test_uploaded_files_are_not_part_of_node_definitions() -> None:
    """Uploaded files change with every job, and their names are private."""

    def load_image(*names: str) -> dict[str, Any]:
        old = {"input": {"required": {"image": [list(names), {"image_upload": True}]}}}
        new = {"input": {"required": {"file": ["COMBO", {"video_upload": True, "options": list(names)}]}}}
        return {"LoadImage": old, "LoadVideo": new}

    one, other = pack(load_image("secret.png")), pack(load_image())
    assert one == other
    assert b"secret" not in gzip.decompress(one.data)


@pytest.mark.parametrize("text", [b"no json", b"[]", b'{"A": 1}', b"[" * 100_000], ids=lambda text: text[:8].decode())
def test_invalid_node_definitions_are_refused(text: bytes) -> None:
    with pytest.raises(InvalidInput, match="not node definitions"):
        unpack(gzip.compress(text), sha256=sha256_of(text))


def test_content_that_does_not_match_its_hash_is_refused() -> None:
    with pytest.raises(InvalidInput, match="hash"):
        unpack(gzip.compress(b"{}"), sha256=sha256_of(b"{} "))


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", gzip.compress(b"{}" * 100, mtime=0)[:-9], b"\x1f\x8b" + b"\0" * 40],
    ids=["empty", "plain", "cut off", "header only"],
)
def test_uncompressed_or_truncated_data_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        unpack(data, sha256=sha256_of(b"{}"))


def test_decompression_stops_at_the_size_limit() -> None:
    data = gzip.compress(b" " * (node_definitions.MAX_BYTES + 1), 1)
    assert len(data) < 1024**2
    with pytest.raises(InvalidInput, match="at most 16 MiB"):
        unpack(data, sha256="0" * 64)


def test_too_many_values_are_refused_before_parsing() -> None:
    text = b'{"A":{"x":[' + b",".join([b"{}"] * (node_definitions.MAX_VALUES + 1)) + b"]}}"
    assert len(text) < node_definitions.MAX_BYTES
    with pytest.raises(InvalidInput, match="at most 1,000,000 values"):
        unpack(gzip.compress(text, 1), sha256=sha256_of(text))


def test_unused_fields_are_not_kept_in_memory() -> None:
    packed = pack({"A": {**loader("a"), "help": "long", "python_module": {"x": [1]}}})
    assert unpack(packed.data, sha256=packed.sha256) == {"A": loader("a")}


def test_merging_stops_at_the_size_limit() -> None:
    merging = Merging(max_bytes=10_000)
    merging.add({"Load": loader("a")})
    merging.add({"Load": loader(*(f"{n}" * 9 for n in range(1000))), "Other": loader(*map(str, range(1000)))})
    merging.add({"Load": loader("b"), "Small": loader("c")})
    assert merging.merged == {"Load": loader("a", "b"), "Small": loader("c")}


def test_newest_class_wins_with_the_choices_of_all() -> None:
    newest = {"Load": loader("a", "b", display_name="New"), "Pick": newer("x", {"key": "y"})}
    oldest = {"Load": loader("b", "c", display_name="Old"), "Pick": newer({"key": "y"}, "z"), "Only": {"output": []}}
    merged = merge([newest, oldest])
    assert merged["Load"] == loader("a", "b", "c", display_name="New")
    assert merged["Pick"] == newer("x", {"key": "y"}, "z")
    assert merged["Only"] == {"output": []}
    assert newest["Load"] == loader("a", "b", display_name="New"), "merge() must not change its arguments"


def test_malformed_definitions_do_not_affect_others() -> None:
    odd: list[dict[str, Any]] = [
        {"A": {"input": None}},
        {"A": loader("a")},
        {"A": {"input": {"required": []}}},
        {"A": {}},
    ]
    assert merge(odd) == {"A": {"input": None}}
    assert merge([{"A": loader("a")}, *odd]) == {"A": loader("a")}
    assert json.loads(gzip.decompress(pack({"A": None, "B": "x"}).data)) == {"A": None, "B": "x"}
