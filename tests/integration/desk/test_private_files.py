"""Only the user who runs a desk or a server can read its files; outputs follow the user's umask."""

from pathlib import Path

import pytest

from comfyrelay.system.permissions import restrict_folder
from tests.support.script_runs import ScriptRun, settings_in


def test_existing_folder_with_other_files_keeps_its_permissions(tmp_path: Path) -> None:
    for name in ("central.db", "central.db-wal", "secrets.json"):
        (tmp_path / name).touch()
    ours, others = ("objects", "worker", "before-restore-20260101-000000", ".restore-x1"), ("lost+found", "holiday")
    for name in (*ours, *others):
        (tmp_path / name).mkdir()
    tmp_path.chmod(0o755)

    def modes() -> set[int]:
        return {(tmp_path / name).stat().st_mode & 0o777 for name in ours}

    restrict_folder(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    # ComfyRelay's folders in it become private; other folders keep their modes
    assert modes() == {0o700}
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in others} == {0o755}
    (tmp_path / "holiday").rmdir()
    restrict_folder(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_target_of_a_linked_folder_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "outputs").symlink_to(tmp_path / "pictures")
    restrict_folder(tmp_path / "data")
    assert (tmp_path / "pictures").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("umask", "mode"), [(None, 0o644), (0o027, 0o640)])
async def test_script_outputs_follow_the_umask_of_the_user(tmp_path: Path, umask: int | None, mode: int) -> None:
    settings = settings_in(tmp_path, "open('made.png', 'w').close(); print('saved: made.png')")
    run = ScriptRun(settings, tmp_path / "log", umask=umask)
    assert (await run.run()).outputs == [tmp_path / "work" / "made.png"]
    assert (tmp_path / "work" / "made.png").stat().st_mode & 0o777 == mode
