"""The output of a job is chosen from all files of its run."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.comfyui import ComfyClient, OutputFile, RunResult
from comfyrelay.errors import NoOutput, OutputGone, ServerUnreachable, TooLarge
from comfyrelay.simulator import LostFile, Simulator
from comfyrelay.worker.files.outputs import CollectedOutput, collect, collect_more, others, pick
from tests.support.graphs import clip, invert, saved_text, words
from tests.support.leases import disconnect, make_lease, open_storage

VIDEO: dict[str, Any] = {"output_extension": "mp4", "output_mime_type": "video/mp4"}
TEXT: dict[str, Any] = {"output_extension": "txt", "output_mime_type": "text/plain"}


def make_result(*files: str, texts: dict[str, tuple[str, ...]] | None = None) -> RunResult:
    """Return a result with these files, given as `node/name`; the names of previews begin with `temp-`."""
    return RunResult(
        prompt_id="p",
        files=tuple(
            OutputFile(node_id=node, filename=name, type="temp" if name.startswith("temp-") else "output")
            for node, _, name in (file.partition("/") for file in files)
        ),
        texts=texts or {},
    )


@pytest.mark.parametrize(
    ("files", "node", "expected"),
    [
        (["1/a.png"], None, "a.png"),
        (["1/a.png", "2/b.png"], "2", "b.png"),
        # the output node takes precedence over a better suffix of another node
        (["1/a.mp4", "2/b.png"], "2", "b.png"),
        (["2/a.png", "2/b.mp4"], "2", "b.mp4"),
        (["2/a.png", "2/b.webm"], "2", "b.webm"),
        (["2/a.webm", "2/b.MP4"], "2", "b.MP4"),
        # the output node has no file
        (["1/a.png", "3/b.mp4"], "2", "b.mp4"),
        (["1/temp-a.mp4", "1/b.mp4"], "1", "b.mp4"),
        (["1/temp-a.mp4"], "1", "temp-a.mp4"),
        (["1/a.mp4", "1/b.mp4"], None, "a.mp4"),
    ],
)
def test_output_is_chosen_by_node_kind_and_suffix(files: list[str], node: str | None, expected: str) -> None:
    picked = pick(make_result(*files), make_lease(output_node_id=node, **VIDEO))
    assert isinstance(picked, OutputFile)
    assert picked.filename == expected


def test_extension_may_have_a_leading_dot() -> None:
    picked = pick(make_result("1/a.webm", "1/b.mp4"), make_lease(**{**VIDEO, "output_extension": ".mp4"}))
    assert isinstance(picked, OutputFile)
    assert picked.filename == "b.mp4"


def test_text_is_the_output_of_a_text_workflow() -> None:
    texts = {"1": ("one",), "2": ("two", "three")}
    assert pick(make_result(texts=texts), make_lease(**TEXT)) == "one"
    assert pick(make_result(texts=texts), make_lease(output_node_id="2", **TEXT)) == "two\nthree"
    assert (
        pick(make_result(texts=texts), make_lease(output_extension="json", output_mime_type="application/json"))
        == "one"
    )
    # a text takes precedence over an image, and a text file over a text
    assert pick(make_result("3/a.png", texts=texts), make_lease(**TEXT)) == "one"
    assert isinstance(pick(make_result("3/a.txt", texts=texts), make_lease(**TEXT)), OutputFile)


def test_text_is_accepted_if_any_output_is_and_no_file_exists() -> None:
    anything = make_lease(output_extension="bin", output_mime_type="application/octet-stream")
    assert pick(make_result(texts={"1": ("one",)}), anything) == "one"
    assert isinstance(pick(make_result("1/a.ply", texts={"1": ("one",)}), anything), OutputFile)


def test_run_without_a_matching_output_is_refused() -> None:
    with pytest.raises(NoOutput):
        pick(make_result(texts={"1": ("one",)}), make_lease())
    with pytest.raises(NoOutput):
        pick(make_result(), make_lease(**TEXT))
    with pytest.raises(NoOutput, match="empty"):
        pick(make_result(texts={"1": ("",)}), make_lease(**TEXT))


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    async with Simulator() as simulator:
        yield simulator


@pytest.fixture
async def comfy(simulator: Simulator) -> AsyncIterator[ComfyClient]:
    async with ComfyClient(simulator.url) as comfy:
        yield comfy


async def test_file_is_saved_with_its_metadata(comfy: ComfyClient, tmp_path: Path) -> None:
    result = await comfy.run(clip())
    to = tmp_path / "output.mp4"
    collected = await collect(comfy, result, make_lease(output_node_id="5", **VIDEO), to)
    content = to.read_bytes()
    assert (collected.size, collected.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert collected.as_output.model_dump() == {
        "size": len(content),
        "mime_type": "video/mp4",
        "sha256": collected.sha256,
        "metadata": {
            "node_id": "5",
            "key": "images",
            "filename": result.files_of("5")[0].filename,
            "prompt_id": result.prompt_id,
            "seconds": result.seconds,
        },
    }
    assert CollectedOutput.from_json(json.loads(json.dumps(collected.to_json()))) == collected


async def test_output_is_reported_with_its_real_media_type(comfy: ComfyClient, tmp_path: Path) -> None:
    collected = await collect(comfy, await comfy.run(invert()), make_lease(**VIDEO), tmp_path / "output.mp4")
    assert collected.mime_type == "image/png"


async def test_download_of_an_oversized_file_is_aborted(comfy: ComfyClient, tmp_path: Path) -> None:
    result = await comfy.run(clip())
    lease = make_lease(output_node_id="5", max_output_bytes=100, **VIDEO)
    with pytest.raises(TooLarge, match="at most 100 bytes"):
        await collect(comfy, result, lease, tmp_path / "output.mp4")
    assert list(tmp_path.iterdir()) == []


async def test_extra_files_are_limited_in_number_and_size(comfy: ComfyClient, tmp_path: Path) -> None:
    result = await comfy.run(invert())
    [first] = result.files
    many = replace(result, files=(first, *(replace(first, node_id=f"{number}") for number in range(90, 95))))
    more, left_out = await collect_more(comfy, many, make_lease(max_output_files=3), tmp_path)
    assert [output.path.name for output in more] == ["more-2.png", "more-3.png"]
    assert left_out == "3 of 6 files of the run are not kept: a job keeps at most 3 readable files."
    limits = {"max_output_files": 9, "max_output_bytes": 10}
    more, left_out = await collect_more(comfy, many, make_lease(**limits), tmp_path)
    assert (more, left_out) == (
        (),
        "5 of 6 files of the run are not kept: a job keeps at most 9 readable files of 10 bytes each.",
    )
    # a server that sends no limit keeps one output
    assert (await collect_more(comfy, many, make_lease(), tmp_path))[0] == ()


async def test_every_saved_file_of_a_run_is_an_output(comfy: ComfyClient, tmp_path: Path) -> None:
    graph = invert()
    graph["1"]["inputs"]["batch_size"] = 4
    graph["4"] = {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "second"}}
    graph["5"] = {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}}
    result = await comfy.run(graph)
    lease = make_lease(output_node_id="3", max_output_files=100)
    more, left_out = await collect_more(comfy, result, lease, tmp_path)
    saved = [*result.files_of("3")[1:], *result.files_of("4")]
    assert left_out is None
    assert [output.metadata for output in more] == [
        {"node_id": file.node_id, "filename": file.filename, "key": file.key} for file in saved
    ]
    assert [output.size for output in more] == [output.path.stat().st_size for output in more]
    collected = replace(await collect(comfy, result, lease, tmp_path / "output.png"), more=more)
    assert CollectedOutput.from_json(json.loads(json.dumps(collected.to_json()))) == collected
    assert [output.as_more_output.extension for output in more] == ["png"] * 7
    assert collected.is_complete
    more[0].path.unlink()
    assert not collected.is_complete


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # nothing is saved, so the previews are the outputs
        (["1/temp-a.png", "1/temp-b.png", "2/temp-c.png"], ["temp-b.png", "temp-c.png"]),
        (["1/a.png", "1/b.png", "2/temp-c.png"], ["b.png"]),
        # a node lists one file twice
        (["1/a.png", "1/b.png", "1/a.png", "1/b.png"], ["b.png"]),
    ],
)
def test_previews_and_repeated_files_are_not_extra_outputs(files: list[str], expected: list[str]) -> None:
    assert [file.filename for file in others(make_result(*files), make_lease())] == expected


@pytest.mark.parametrize("file_format", ["txt", "md", "json"])
async def test_saved_text_is_one_output(comfy: ComfyClient, tmp_path: Path, file_format: str) -> None:
    """ComfyUI reports the text of `SaveText` and the file that contains it."""
    result, lease = await comfy.run(saved_text(file_format)), make_lease(max_output_files=9, **TEXT)
    first = await collect(comfy, result, lease, tmp_path / "output.txt")
    mime_type = "application/json" if file_format == "json" else "text/plain"
    assert (first.metadata["filename"], first.mime_type) == (f"note_00001.{file_format}", mime_type)
    assert first.metadata["texts"] == {"2": "a note"}
    assert await collect_more(comfy, result, lease, tmp_path) == ((), None)


async def test_missing_extra_file_does_not_fail_the_job(
    simulator: Simulator, comfy: ComfyClient, tmp_path: Path
) -> None:
    graph = invert()
    graph["1"]["inputs"]["batch_size"] = 2
    result = await comfy.run(graph)
    simulator.misbehave(LostFile())
    more, left_out = await collect_more(comfy, result, make_lease(max_output_files=9), tmp_path)
    assert more == ()
    assert left_out is not None


async def test_empty_extra_text_is_not_kept(comfy: ComfyClient, tmp_path: Path) -> None:
    result = await comfy.run(invert())
    empty = replace(result, texts={"7": ("",)})
    more, _ = await collect_more(comfy, empty, make_lease(output_node_id="3", max_output_files=9), tmp_path)
    assert more == ()


async def test_text_output_is_saved_as_a_file(comfy: ComfyClient, tmp_path: Path) -> None:
    result = await comfy.run(words("grüße"))
    collected = await collect(comfy, result, make_lease(**TEXT), tmp_path / "output.txt")
    assert (tmp_path / "output.txt").read_text("utf-8") == "grüße"
    assert (collected.size, collected.mime_type) == (7, "text/plain")
    assert collected.sha256 == hashlib.sha256("grüße".encode()).hexdigest()
    about = {"node_id": "1", "prompt_id": result.prompt_id, "seconds": result.seconds}
    assert collected.metadata == {**about, "texts": {"1": "grüße"}}


async def test_extra_texts_are_reported_and_stored_as_files(comfy: ComfyClient, tmp_path: Path) -> None:
    result = await comfy.run({**invert(), "7": words("seven")["1"], "8": words("eight \0")["1"]})
    lease = make_lease(output_node_id="3", max_output_files=9)
    collected = await collect(comfy, result, lease, tmp_path / "output.png")
    assert (collected.mime_type, collected.metadata["texts"]) == ("image/png", {"7": "seven", "8": "eight \0"})
    more, left_out = await collect_more(comfy, result, lease, tmp_path)
    assert ([output.path.name for output in more], left_out) == (["more-2.txt", "more-3.txt"], None)
    assert [output.path.read_text("utf-8") for output in more] == ["seven", "eight \N{REPLACEMENT CHARACTER}"]


async def test_extra_texts_are_reported_up_to_a_limit(comfy: ComfyClient, tmp_path: Path) -> None:
    result = await comfy.run({"1": words("a" * 19_999)["1"], "2": words("b" * 9)["1"], "3": words("c")["1"]})
    collected = await collect(comfy, result, make_lease(output_node_id="3", **TEXT), tmp_path / "output.txt")
    assert (tmp_path / "output.txt").read_text() == "c"
    assert {node: len(text) for node, text in collected.metadata["texts"].items()} == {"1": 19_999, "2": 1}


async def test_socket_image_can_be_the_output(comfy: ComfyClient, tmp_path: Path) -> None:
    graph = invert() | {"3": {"class_type": "SaveImageWebsocket", "inputs": {"images": ["2", 0]}}}
    graph["1"]["inputs"]["batch_size"] = 2
    result = await comfy.run(graph)
    lease = make_lease(output_node_id="3", max_output_files=9)
    collected = await collect(comfy, result, lease, tmp_path / "output.png")
    assert (collected.mime_type, (tmp_path / "output.png").read_bytes()) == ("image/png", result.files[0].content)
    more, _ = await collect_more(comfy, result, lease, tmp_path)
    assert [output.path.read_bytes() for output in more] == [result.files[1].content]


async def test_missing_file_is_reported_and_leaves_no_file(
    simulator: Simulator, comfy: ComfyClient, tmp_path: Path
) -> None:
    result = await comfy.run(invert())
    simulator.misbehave(LostFile())
    with pytest.raises(OutputGone):
        await collect(comfy, result, make_lease(), tmp_path / "output.png")
    assert list(tmp_path.iterdir()) == []


async def test_output_is_read_after_a_restart_of_the_server(
    simulator: Simulator, comfy: ComfyClient, tmp_path: Path
) -> None:
    result = await comfy.run(invert())
    await simulator.stop()
    reading = asyncio.create_task(collect(comfy, result, make_lease(), tmp_path / "output.png"))
    done, _ = await asyncio.wait({reading}, timeout=0.3)
    assert not done
    await simulator.start()
    assert (await reading).size == (tmp_path / "output.png").stat().st_size > 0


async def test_lost_connection_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comfyrelay.worker.files.outputs.PAUSES_SECONDS", (0.01, 0.02, 0.03))
    async with open_storage() as server, ComfyClient(server.url("")) as comfy:
        server.files["view"] = b"made"
        server.answers = [disconnect, disconnect]
        collected = await collect(comfy, make_result("1/a.png"), make_lease(), tmp_path / "output.png")
        assert (collected.size, len(server.requests)) == (4, 3)
        server.answers = [disconnect] * 9
        with pytest.raises(ServerUnreachable):
            await collect(comfy, make_result("1/a.png"), make_lease(), tmp_path / "output.png")
