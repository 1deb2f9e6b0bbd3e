"""ComfyUI processes share models and custom nodes, but not the files that they write."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from comfyrelay.comfyui.graphs.foreign_files import UPLOAD_FOLDER
from comfyrelay.comfyui.processes.gpus import LocalGpu
from comfyrelay.comfyui.processes.installs import Install, InstallKind, resolve_install
from comfyrelay.comfyui.processes.launch import ProcessLaunch, empty_folders, launch, link_inputs, make_folders
from comfyrelay.comfyui.processes.log import LAST_LINES, ROTATED_FILES, ProcessLog, last_lines_in
from comfyrelay.comfyui.processes.options import ManagedSettings
from comfyrelay.configuration import load
from comfyrelay.errors import ConfigurationError
from comfyrelay.worker.settings import WorkerSettings, load_worker_settings
from tests.support.comfyui_install import FakeInstall

GPU = LocalGpu(key="GPU-1", variables={"CUDA_VISIBLE_DEVICES": "GPU-1"})
PYTHON = Path("/opt/venv/bin/python")


def launch_process(install: Install, folder: Path, variables: Sequence[str] = ()) -> ProcessLaunch:
    return launch(
        install, python=PYTHON, arguments=["--lowvram"], gpu=GPU, folder=folder, port=8200, variables=variables
    )


def test_process_starts_on_its_gpu_with_options_of_its_version(tmp_path: Path) -> None:
    install = FakeInstall(tmp_path / "ComfyUI")
    made = launch_process(resolve_install(install.folder), tmp_path / "one")
    words = list(made.argv)
    assert words[:2] == [str(PYTHON), str(install.folder / "main.py")]
    assert words[words.index("--database-url") + 1] == f"sqlite:///{tmp_path}/one/user/comfyui.db"
    assert words[-1] == "--lowvram"
    assert made.environment["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    (install.folder / "comfy" / "cli_args.py").write_text("an older one")
    assert not {"--database-url", "--user-directory"} & set(
        launch_process(resolve_install(install.folder), tmp_path).argv
    )


def test_desktop_app_gets_its_model_folders(tmp_path: Path) -> None:
    install = Install(
        kind=InstallKind.DESKTOP,
        named=tmp_path / "b",
        code=tmp_path / "c",
        base=tmp_path / "b",
        extra_models=tmp_path / "e",
    )
    words = " ".join(launch_process(install, tmp_path / "one").argv)
    assert f"--base-directory {tmp_path}/b --extra-model-paths-config {tmp_path}/e" in words


def test_portable_build_ignores_user_site_packages(tmp_path: Path) -> None:
    install = Install(kind=InstallKind.PORTABLE, named=tmp_path, code=tmp_path / "ComfyUI")
    assert launch_process(install, tmp_path / "one").argv[1] == "-s"


def test_process_does_not_inherit_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ("FLEET_SECRET", "COMFY_CLOUD_API_KEY", "COMFYRELAY_WORKER_FLEET_SECRET")
    for name in (*own, "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "VIRTUAL_ENV", "HF_TOKEN", "http_proxy", "CUDA_HOME"):
        monkeypatch.setenv(name, "http://mine.test")
    install = resolve_install(FakeInstall(tmp_path / "ComfyUI").folder)
    environment = launch_process(install, tmp_path / "one").environment
    assert sorted(name for name, value in environment.items() if value == "http://mine.test") == [
        "CUDA_HOME",
        "http_proxy",
    ]
    environment = launch_process(install, tmp_path / "one", variables=["HF_TOKEN", *own]).environment
    assert environment["HF_TOKEN"] == "http://mine.test"
    assert not environment.keys() & set(own)


def test_pytorch_threads_wait_passively_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install = resolve_install(FakeInstall(tmp_path / "ComfyUI").folder)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert launch_process(install, tmp_path / "one").environment["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert launch_process(install, tmp_path / "one").environment["OMP_WAIT_POLICY"] == "ACTIVE"


def test_user_input_files_are_shared_and_never_removed(tmp_path: Path) -> None:
    install = FakeInstall(tmp_path / "ComfyUI")
    own = install.folder / "input"
    (own / "face.png").write_bytes(b"face")
    (own / UPLOAD_FOLDER).mkdir()
    make_folders(tmp_path / "one")
    for _ in range(2):
        assert link_inputs(own, tmp_path / "one" / "input") == []
    assert (tmp_path / "one" / "input" / "face.png").read_bytes() == b"face"
    assert [path.name for path in (tmp_path / "one" / "input").iterdir()] == ["face.png"]
    empty_folders(tmp_path / "one")
    assert (own / "face.png").read_bytes() == b"face"
    assert not (tmp_path / "one" / "input").exists()


@pytest.mark.parametrize("has_hard_links", [True, False])
def test_folders_are_shared_without_symlink_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_hard_links: bool
) -> None:
    def refuse(*_given: object, **_named: object) -> None:
        raise OSError(1314, "A required privilege is not held by the client")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    if not has_hard_links:
        monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr("comfyrelay.comfyui.processes.launch.MAX_COPIED_BYTES", 15)
    own, shared = tmp_path / "input", tmp_path / "one" / "input"
    make_folders(tmp_path / "one")
    for name in ("face.png", "film.mp4", "3d/model.glb"):
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_bytes(b"0123456789 too large" if name == "film.mp4" else name.encode())
    too_large = [] if has_hard_links else [str(own / "film.mp4")]
    assert link_inputs(own, shared) == too_large
    (own / "3d" / "late.glb").write_bytes(b"late")
    assert link_inputs(own, shared) == too_large
    found = {path.relative_to(shared).as_posix(): path.read_bytes() for path in shared.rglob("*") if path.is_file()}
    shared_film = {} if too_large else {"film.mp4": b"0123456789 too large"}
    assert found == {"face.png": b"face.png", "3d/model.glb": b"3d/model.glb", "3d/late.glb": b"late", **shared_film}
    empty_folders(tmp_path / "one")
    assert (own / "3d" / "late.glb").read_bytes() == b"late"


def test_workflows_saved_in_the_editor_are_kept(tmp_path: Path) -> None:
    make_folders(tmp_path / "one")
    saved = tmp_path / "one" / "user" / "default" / "workflows" / "mine.json"
    saved.parent.mkdir(parents=True)
    saved.write_text("{}")
    empty_folders(tmp_path / "one")
    assert saved.read_text() == "{}"


class TestSettings:
    def test_arguments_are_split_and_reserved_ones_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COMFYRELAY_WORKER_COMFYUI_DIR", "/opt/ComfyUI")
        monkeypatch.setenv("COMFYRELAY_WORKER_COMFYUI_ARGS", "--lowvram --extra 'a b'")
        monkeypatch.setenv("COMFYRELAY_WORKER_PER_GPU", "2")
        options = load_worker_settings().managed
        assert options is not None
        assert (options.arguments, options.first_count) == (("--lowvram", "--extra", "a b"), 2)
        # ComfyUI also accepts abbreviated options.
        for taken, named in {
            "--port=8188": "--port",
            "--out /x": "--output-directory",
            "--default-device 1": "--default",
        }.items():
            monkeypatch.setenv("COMFYRELAY_WORKER_COMFYUI_ARGS", taken)
            with pytest.raises(ConfigurationError, match=rf"COMFYUI_ARGS.*ComfyRelay sets {named}"):
                load_worker_settings()

    @pytest.mark.parametrize("count", ["0", "17", "many"])
    def test_count_is_a_small_number_or_auto(self, monkeypatch: pytest.MonkeyPatch, count: str) -> None:
        monkeypatch.setenv("COMFYRELAY_WORKER_PER_GPU", count)
        with pytest.raises(ConfigurationError, match="PER_GPU"):
            load_worker_settings()

    def test_managed_comfyui_excludes_a_base_url(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COMFYRELAY_WORKER_COMFYUI_DIR", "/opt/ComfyUI")
        monkeypatch.setenv("COMFYUI_BASE_URL", "http://127.0.0.1:8188")
        with pytest.raises(ConfigurationError, match="remove COMFYUI_BASE_URL"):
            load_worker_settings()

    def test_cloud_key_does_not_disable_the_managed_comfyui(self) -> None:
        settings = WorkerSettings(comfyui_dir=Path("/opt/ComfyUI"), comfy_cloud_api_key="key")
        assert settings.providers == ["self_hosted", "cloud"]

    def test_no_process_is_started_without_settings(self) -> None:
        assert load(ManagedSettings).managed is None


class TestLog:
    def test_log_keeps_the_last_lines_and_final_progress_bars(self, tmp_path: Path) -> None:
        log = ProcessLog(tmp_path / "comfyui.log")
        log.write("got pröm".encode()[:-2])
        log.write("öm".encode()[1:] + b"\r\n 25%|#\r 50%|##\r")
        log.write(b"100%|####\n")
        assert log.last_lines == ["got pröm", "100%|####"]
        log.write(b"no end yet")
        assert log.last_lines[-1] == "no end yet"
        log.write(b"\n" + b"".join(b"line %d\n" % number for number in range(200)))
        assert (len(log.last_lines), log.last_lines[-1]) == (LAST_LINES, "line 199")
        log.start("python main.py")
        assert log.last_lines == []

    def test_log_file_has_the_same_last_lines(self, tmp_path: Path) -> None:
        log = ProcessLog(tmp_path / "comfyui.log")
        assert last_lines_in(log.path) == []
        log.start("python main.py")
        log.write(b"x" * 400_000 + b"\n 50%|##\r100%|####\n" + b"".join(b"line %d\n" % n for n in range(58)))
        assert last_lines_in(log.path) == log.last_lines
        assert last_lines_in(log.path)[1:3] == ["100%|####", "line 0"]

    def test_log_is_rotated(self, tmp_path: Path) -> None:
        log = ProcessLog(tmp_path / "comfyui.log", max_bytes=100)
        for number in range(50):
            log.write(b"%07d\n" % number * 10)
        files = sorted(tmp_path.iterdir())
        rotated = [f"comfyui.log.{number}" for number in range(1, ROTATED_FILES + 1)]
        assert [file.name for file in files] == ["comfyui.log", *rotated]
        assert all(file.stat().st_size <= 100 for file in files)
        assert files[0].read_bytes().startswith(b"0000049")

    def test_log_survives_a_full_disk(self, tmp_path: Path) -> None:
        (tmp_path / "comfyui.log").symlink_to("/dev/full")
        log = ProcessLog(tmp_path / "comfyui.log")
        log.write(b"OSError: [Errno 28] No space left on device\n")
        assert log.last_lines == ["OSError: [Errno 28] No space left on device"]
