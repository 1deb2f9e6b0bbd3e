"""After a job, only its own files are removed from ComfyUI's folders."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from comfyrelay.comfyui import Attachment, ComfyClient, OutputFile, RunResult
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.simulator import Simulator
from comfyrelay.worker.files.inputs import job_folder
from comfyrelay.worker.files.run_folders import ComfyFolders
from tests.support.graphs import PNG, invert_file
from tests.support.leases import make_lease

LEASE = make_lease(1)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    for name in ("input", "output", "temp"):
        (tmp_path / "comfy" / name).mkdir(parents=True)
    return tmp_path / "comfy"


def write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path


def files_in(base: Path) -> list[str]:
    return sorted(str(path.relative_to(base)) for path in base.rglob("*") if path.is_file())


def result(*files: OutputFile, prompt_id: str = "p1") -> RunResult:
    return RunResult(prompt_id=prompt_id, files=files)


def remove(base: Path, run_result: RunResult | None = None, *, prompt_ids: tuple[str, ...] = ()) -> None:
    ComfyFolders(lambda: [base], asset_folder="assets").remove(lease=LEASE, result=run_result, prompt_ids=prompt_ids)


def test_files_of_the_user_are_kept_in_a_shared_folder(tmp_path: Path) -> None:
    own = tmp_path / "output" / "mine.png"
    ours = tmp_path / "output" / "comfyrelay" / "run-1" / "picture.png"
    for path in (own, ours):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"picture")
    listed = [OutputFile(node_id="1", filename="mine.png"), OutputFile(node_id="2", filename="picture.png")]
    ComfyFolders(lambda: [tmp_path], asset_folder="assets", shared=lambda: [tmp_path]).remove_outputs(["run-1"], listed)
    assert own.exists()
    assert not ours.parent.exists()
    ComfyFolders(lambda: [tmp_path], asset_folder="assets").remove_outputs([], listed)
    assert not own.exists()


def test_only_the_folders_of_the_job_are_removed(base: Path) -> None:
    other = make_lease(2)
    for path in (
        f"input/comfyrelay/{job_folder(LEASE)}/a.png",
        f"input/comfyrelay/{job_folder(other)}/a.png",
        "input/comfyrelay/shared.png",
        "input/mine.png",
        "output/comfyrelay/p1/a_00001_.png",
        "output/comfyrelay/p1/deeper/b.png",
        "output/comfyrelay/p2/a.png",
        "output/comfyrelay/p3/a.png",
        "temp/comfyrelay/p2/a.png",
    ):
        write(base / path)
    remove(base, result(), prompt_ids=("p2",))
    assert files_in(base) == [
        f"input/comfyrelay/{job_folder(other)}/a.png",
        "input/comfyrelay/shared.png",
        "input/mine.png",
        "output/comfyrelay/p3/a.png",
    ]


def test_result_files_are_removed_from_any_subfolder(base: Path) -> None:
    for path in ("output/a.png", "output/sub/b.png", "temp/preview_00001_.png", "input/c.png", "output/c.png"):
        write(base / path)
    run_result = result(
        OutputFile(node_id="1", filename="a.png"),
        OutputFile(node_id="1", filename="b.png", subfolder="sub"),
        OutputFile(node_id="2", filename="preview_00001_.png", type="temp"),
        OutputFile(node_id="3", filename="c.png", type="input"),
        OutputFile(node_id="3", filename="gone.png"),
    )
    remove(base, run_result)
    assert files_in(base) == ["input/c.png", "output/c.png"]


@pytest.mark.parametrize(
    ("subfolder", "filename"),
    [
        ("..", "secret"),
        ("../../outside", "secret"),
        ("", "../secret"),
        ("a/../..", "secret"),
        ("", ".."),
        ("", "."),
        ("", ""),
        ("", "comfyrelay"),
        ("\0", "x"),
        ("link", "secret"),
    ],
)
def test_outside_files_and_whole_folders_are_never_removed(base: Path, subfolder: str, filename: str) -> None:
    outside = write(base.parent / "outside" / "secret")
    write(base / "secret")
    write(base / "output" / "comfyrelay" / "p9" / "a.png")
    (base / "output" / "a").mkdir()
    (base / "output" / "link").symlink_to(outside.parent)
    before = files_in(base.parent)
    remove(base, result(OutputFile(node_id="1", filename=filename, subfolder=subfolder)))
    assert files_in(base.parent) == before


def test_absolute_paths_are_never_removed(base: Path) -> None:
    outside = write(base.parent / "outside" / "secret")
    remove(base, result(OutputFile(node_id="1", filename="secret", subfolder=str(outside.parent))))
    remove(base, result(OutputFile(node_id="1", filename=str(outside))))
    assert outside.is_file()


@pytest.mark.parametrize("prompt_id", ["..", ".", "", "../..", "/", "a/b", "p\0"])
def test_prompt_id_is_not_used_as_a_path(base: Path, prompt_id: str) -> None:
    write(base / "output" / "comfyrelay" / "p9" / "a.png")
    write(base / "output" / "mine.png")
    before = files_in(base)
    remove(base, result(prompt_id=prompt_id), prompt_ids=(prompt_id,))
    assert files_in(base) == before


def test_link_is_not_followed(base: Path) -> None:
    outside = write(base.parent / "outside" / "secret")
    (base / "output" / "comfyrelay").mkdir()
    (base / "output" / "comfyrelay" / "p1").symlink_to(outside.parent)
    (base / "output" / "a.png").symlink_to(outside)
    remove(base, result(OutputFile(node_id="1", filename="a.png")))
    assert outside.is_file()
    assert not (base / "output" / "a.png").is_symlink()


def test_files_in_linked_folders_are_removed(base: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (base / "output").rmdir()
    (base / "output").symlink_to(tmp_path / "disk")
    write(base / "output" / "comfyrelay" / "p1" / "a.png")
    remove(base, result())
    assert files_in(tmp_path / "disk") == []


def test_failed_removal_is_logged(base: Path) -> None:
    write(base / "output" / "comfyrelay" / "p1")
    with capture_logs() as logs:
        remove(base, result())
    assert [log["event"] for log in logs] == ["comfy_folders.not_removed"]


def test_nothing_is_removed_without_known_folders(base: Path) -> None:
    write(base / "output" / "comfyrelay" / "p1" / "a.png")
    ComfyFolders(lambda: [], asset_folder="assets").remove(lease=LEASE, result=result(), prompt_ids=())
    assert files_in(base) == ["output/comfyrelay/p1/a.png"]


class TestAssets:
    """When the worker drops effect assets from its cache, only their copies are removed."""

    CACHED = tuple(f"{digit * 64}.png" for digit in "ab")
    COPIES = tuple(f"input/comfyrelay/assets/{digit * 40}.png" for digit in "ab")
    OTHERS = ("input/comfyrelay/assets.png", f"input/comfyrelay/{'a' * 40}.png", f"input/{'a' * 40}.png")

    @pytest.fixture
    def folders(self, base: Path) -> ComfyFolders:
        for path in (*self.COPIES, *self.OTHERS):
            write(base / path)
        return ComfyFolders(lambda: [base], asset_folder="assets")

    def test_asset_is_removed_by_its_cache_name(self, base: Path, folders: ComfyFolders) -> None:
        folders.remove_asset(self.CACHED[0])
        assert files_in(base) == sorted([self.COPIES[1], *self.OTHERS])
        # removing a missing asset is harmless
        folders.remove_asset(self.CACHED[0])

    def test_assets_missing_from_the_cache_are_removed(self, base: Path, folders: ComfyFolders) -> None:
        folders.keep_assets([self.CACHED[1], f"{'c' * 64}.png"])
        assert files_in(base) == sorted([self.COPIES[1], *self.OTHERS])

    def test_linked_asset_folder_is_not_followed(self, base: Path, tmp_path: Path) -> None:
        outside = write(tmp_path / "outside" / f"{'a' * 40}.png")
        (base / "input" / "comfyrelay").mkdir()
        (base / "input" / "comfyrelay" / "assets").symlink_to(outside.parent)
        folders = ComfyFolders(lambda: [base], asset_folder="assets")
        folders.remove_asset(self.CACHED[0])
        folders.keep_assets([])
        assert outside.is_file()

    def test_missing_asset_folder_is_ignored(self, base: Path) -> None:
        ComfyFolders(lambda: [base], asset_folder="assets").keep_assets(self.CACHED)
        assert files_in(base) == []


class TestRealRun:
    @pytest.fixture
    async def simulator(self) -> AsyncIterator[Simulator]:
        async with Simulator() as simulator:
            yield simulator

    async def test_real_run_leaves_no_files(self, simulator: Simulator) -> None:
        graph: Graph = invert_file("__IMG__") | {
            "9": {"class_type": "PreviewImage", "inputs": {"images": ["2", 0]}},
        }
        photo = Attachment(placeholder="__IMG__", source=PNG, name="a.png", folder=job_folder(LEASE))
        async with ComfyClient(simulator.url) as comfy:
            run_result = await comfy.run(graph, attachments=[photo])
        assert len(files_in(simulator.folder)) == 3
        remove(simulator.folder, run_result)
        assert files_in(simulator.folder) == []
