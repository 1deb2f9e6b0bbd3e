"""The version comes from the tag or, between tags, from the changelog."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

IDENTITY = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")


class Tree:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "tools").mkdir(parents=True)
        shutil.copy(ROOT / "tools" / "version.py", folder / "tools")
        self.start_section("1.2.3")

    def start_section(self, release: str) -> None:
        (self._folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## {release} (unreleased)\n", "utf-8")

    def release(self, release: str) -> None:
        (self._folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## {release} (2026-11-30)\n", "utf-8")
        self.commit()
        self.git("tag", f"v{release}")

    def git(self, *words: str) -> None:
        subprocess.run(["git", *IDENTITY, *words], cwd=self._folder, check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--allow-empty", "--message", "Change it")

    def version(self) -> str:
        done = self.run()
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def run(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (sys.executable, "tools/version.py"), cwd=self._folder, check=False, capture_output=True, text=True
        )


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "tree")


def test_version_follows_the_tags(tree: Tree) -> None:
    tree.git("init")
    tree.commit()
    assert re.fullmatch(r"1\.2\.3\.dev1\+g[0-9a-f]{9}", tree.version())
    tree.release("1.2.3")
    assert tree.version() == "1.2.3"
    tree.commit()
    assert re.fullmatch(r"1\.2\.3\.post1\+g[0-9a-f]{9}", tree.version())
    tree.start_section("1.3.0")
    assert re.fullmatch(r"1\.3\.0\.dev1\+g[0-9a-f]{9}\.dirty", tree.version())
    tree.commit()
    assert re.fullmatch(r"1\.3\.0\.dev2\+g[0-9a-f]{9}", tree.version())


def test_changed_tree_is_not_a_release(tree: Tree) -> None:
    tree.git("init")
    tree.release("1.2.3")
    tree.start_section("1.2.3 again")
    assert re.fullmatch(r"1\.2\.3\.post0\+g[0-9a-f]{9}\.dirty", tree.version())


def test_tag_of_an_unreleased_section_is_refused(tree: Tree) -> None:
    tree.git("init")
    tree.commit()
    tree.git("tag", "v1.2.3")
    done = tree.run()
    assert done.returncode == 1
    assert "Replace (unreleased) in the heading of 1.2.3 in CHANGELOG.md, then move the tag." in done.stderr


def test_tree_without_git_has_a_development_version(tree: Tree) -> None:
    assert tree.version() == "1.2.3.dev0"


def test_enclosing_repository_is_ignored(tmp_path: Path) -> None:
    subprocess.run(["git", "init"], cwd=tmp_path, check=True, capture_output=True)
    assert Tree(tmp_path / "unpacked").version() == "1.2.3.dev0"
