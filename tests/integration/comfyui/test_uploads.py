"""Files of a run are placed by input or placeholder, and have their own folder or are shared by many runs."""

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from comfyrelay.comfyui import Attachment, ComfyApiClient, ComfyClient
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.errors import InvalidInput
from comfyrelay.simulator import Simulator
from tests.support.graphs import PNG, invert, invert_file, words

UPLOADED = f"{hashlib.sha256(PNG).hexdigest()[:40]}.png"
OTHER = b"".join([PNG, b"another file"])


def two_words(first: str, second: str) -> Graph:
    return words(first) | {"2": {"class_type": "PreviewAny", "inputs": {"source": second}}}


def picture(**more: Any) -> Attachment:
    return Attachment(**{"source": PNG, "name": "a.png", "placeholder": "__IMG__", **more})


def files_on(simulator: Simulator) -> list[str]:
    folder = simulator.folder / "input"
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def uploads(simulator: Simulator) -> int:
    return simulator.log.count("POST", "/upload/image")


class TestPlaceholders:
    async def test_placeholder_is_replaced_by_the_file(self, comfy: ComfyClient) -> None:
        result = await comfy.run(invert_file("__IMG__"), attachments=[picture()])
        content = b"".join([piece async for piece in comfy.read(result.file)])
        assert Image.open(io.BytesIO(content)).size == Image.open(io.BytesIO(PNG)).size

    async def test_every_occurrence_is_replaced_even_inside_a_text(self, comfy: ComfyClient) -> None:
        graph = two_words("__IMG__", "look at __IMG__ and __IMG__")
        result = await comfy.run(graph, attachments=[picture()])
        there = f"comfyrelay/{UPLOADED}"
        assert result.texts == {"1": (there,), "2": (f"look at {there} and {there}",)}
        assert graph == two_words("__IMG__", "look at __IMG__ and __IMG__")

    async def test_placeholders_are_replaced_in_one_pass(self, simulator: Simulator, comfy: ComfyClient) -> None:
        """Neither inserted file names nor values set by hand are searched for placeholders."""
        both = [
            picture(),
            Attachment(source=OTHER, name="b.png", placeholder="comfyrelay"),
            Attachment(source=OTHER, name="b.png", node="2", input="source"),
        ]
        result = await comfy.run(two_words("__IMG__", "comfyrelay"), attachments=both)
        assert [text[0] in files_on(simulator) for text in result.texts.values()] == [True, True]
        assert uploads(simulator) == 1 + 1

    async def test_unused_attachment_is_not_uploaded(self, simulator: Simulator, comfy: ComfyClient) -> None:
        await comfy.run(words(), attachments=[picture()])
        assert uploads(simulator) == 0

    async def test_attachment_without_a_clear_target_is_refused(self, simulator: Simulator, comfy: ComfyClient) -> None:
        targets: list[dict[str, Any]] = [
            {},
            {"node": "1"},
            {"input": "image"},
            {"node": "1", "input": "image", "placeholder": "__IMG__"},
            {"node": "1", "placeholder": "__IMG__"},
            {"placeholder": ""},
        ]
        for target in targets:
            with pytest.raises(InvalidInput, match="either a node and its input, or a placeholder"):
                await comfy.run(invert_file("__IMG__"), attachments=[Attachment(source=PNG, **target)])
        assert uploads(simulator) == 0


class TestFolders:
    async def test_file_of_one_run_has_its_own_folder(self, simulator: Simulator, comfy: ComfyClient) -> None:
        await comfy.run(invert_file("__IMG__"), attachments=[picture(folder="job-17-ab12cd34")])
        assert files_on(simulator) == [f"comfyrelay/job-17-ab12cd34/{UPLOADED}"]

    async def test_file_of_one_run_is_not_remembered(self, simulator: Simulator, comfy: ComfyClient) -> None:
        for _ in range(2):
            await comfy.run(words("__IMG__"), attachments=[picture(folder="job-1")])
        assert uploads(simulator) == 2

    async def test_folder_cannot_escape(self, simulator: Simulator, comfy: ComfyClient) -> None:
        for folder in ("..", "../x", "a/b", "", "a\\b", "/etc", "a b", "x" * 101):
            with pytest.raises(InvalidInput, match="only letters"):
                await comfy.run(words("__IMG__"), attachments=[picture(folder=folder)])
        assert files_on(simulator) == []


class TestShared:
    async def test_shared_file_is_uploaded_once_across_processes(self, simulator: Simulator) -> None:
        for _ in range(2):
            async with ComfyClient(simulator.url) as comfy:
                for _ in range(2):
                    result = await comfy.run(words("__IMG__"), attachments=[picture(shared=True)])
                    assert result.texts == {"1": (f"comfyrelay/{UPLOADED}",)}
        assert uploads(simulator) == 1

    async def test_server_is_queried_once_per_client(self, simulator: Simulator, comfy: ComfyClient) -> None:
        runs = (comfy.run(words("__IMG__"), attachments=[picture(shared=True)]) for _ in range(3))
        await asyncio.gather(*runs)
        assert (uploads(simulator), simulator.log.count("GET", "/view")) == (1, 1)

    async def test_known_hash_avoids_reading_a_shared_file(self, simulator: Simulator, tmp_path: Path) -> None:
        source = tmp_path / "a.png"
        source.write_bytes(PNG)
        shared = picture(source=source, content_hash=hashlib.sha256(PNG).hexdigest(), shared=True)
        async with ComfyClient(simulator.url) as comfy:
            await comfy.run(words("__IMG__"), attachments=[shared])
        # Only the sizes are compared.
        source.write_bytes(b"x" * len(PNG))
        async with ComfyClient(simulator.url) as comfy:
            await comfy.run(words("__IMG__"), attachments=[shared])
        assert uploads(simulator) == 1

    async def test_partial_upload_is_replaced(self, simulator: Simulator, comfy: ComfyClient) -> None:
        """An interrupted upload leaves a file with that name and another size."""
        cut_off = simulator.folder / "input" / "comfyrelay" / UPLOADED
        cut_off.parent.mkdir()
        cut_off.write_bytes(PNG[:-1])
        result = await comfy.run(words("__IMG__"), attachments=[picture(shared=True)])
        assert (simulator.folder / "input" / result.texts["1"][0]).read_bytes() == PNG

    async def test_shared_file_is_uploaded_again_after_the_folder_was_emptied(
        self, simulator: Simulator, comfy: ComfyClient
    ) -> None:
        await comfy.run(invert_file("__IMG__"), attachments=[picture(shared=True)])
        (simulator.folder / "input" / "comfyrelay" / UPLOADED).unlink()
        assert (await comfy.run(invert_file("__IMG__"), attachments=[picture(shared=True)])).files
        assert uploads(simulator) == 2

    async def test_shared_file_may_have_a_folder(self, simulator: Simulator, comfy: ComfyClient) -> None:
        for _ in range(2):
            await comfy.run(words("__IMG__"), attachments=[picture(folder="assets", shared=True)])
        assert (files_on(simulator), uploads(simulator)) == ([f"comfyrelay/assets/{UPLOADED}"], 1)

    async def test_removed_file_is_uploaded_again_once_reported(self, simulator: Simulator, comfy: ComfyClient) -> None:
        """Not every node detects a missing file before it runs."""
        for _ in range(2):
            result = await comfy.run(words("__IMG__"), attachments=[picture(shared=True)])
            (simulator.folder / "input" / result.texts["1"][0]).unlink()
            comfy.forget_uploads()
        assert uploads(simulator) == 2

    async def test_empty_file_can_be_shared(self, simulator: Simulator, comfy: ComfyClient) -> None:
        result = await comfy.run(words("__IMG__"), attachments=[picture(source=b"", shared=True)])
        assert (simulator.folder / "input" / result.texts["1"][0]).read_bytes() == b""


class TestCloud:
    @pytest.fixture
    async def simulator(self) -> AsyncIterator[Simulator]:
        async with Simulator(cloud=True, api_key="k") as simulator:
            yield simulator

    async def test_placeholders_and_shared_files(self, simulator: Simulator) -> None:
        async with ComfyApiClient("k", url=simulator.url, poll_seconds=0.02) as cloud:
            for color in (1, 2):
                graph = invert(color) | {"1": {"class_type": "LoadImage", "inputs": {"image": "__IMG__"}}}
                assert (await cloud.run(graph, attachments=[picture(shared=True)])).files
        assert simulator.log.count("POST", "/api/v2/assets") == 1
