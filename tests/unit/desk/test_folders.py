"""Inputs are read from a folder, prompts from a file, and outputs get readable names."""

import os
import re
from pathlib import Path, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.desk.batches.folders import MAX_PROMPT_BYTES, inputs_in, prompts_from, readable_name
from comfyrelay.domain.properties import kind_of
from comfyrelay.errors import InvalidInput
from comfyrelay.text import natural_key


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "inputs"
    for name in ("shot10.png", "shot2.PNG", "Shot1.jpg", "clip.mp4", "song.wav", "notes.txt", ".hidden.png", "no"):
        (folder / "a" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "a" / name).write_bytes(b"x")
    (folder / "a" / "folder.png").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "private.png").write_bytes(b"x")
    return folder


def refusal(root: Path, subdir: str) -> str:
    with pytest.raises(InvalidInput) as refused:
        inputs_in(root, subdir)
    assert refused.value.errors == {"input_subdir": refused.value.detail}
    return refused.value.detail


class TestInputs:
    def test_inputs_are_the_media_of_the_folder_in_natural_order(self, root: Path) -> None:
        found = [path.name for path in inputs_in(root, "a")]
        assert found == ["clip.mp4", "Shot1.jpg", "shot2.PNG", "shot10.png", "song.wav"]

    def test_input_folder_itself_is_listed(self, root: Path) -> None:
        (root / "top.png").write_bytes(b"x")
        assert [path.name for path in inputs_in(root)] == [path.name for path in inputs_in(root, ".")] == ["top.png"]

    def test_folder_without_media_has_none(self, root: Path) -> None:
        (root / "empty").mkdir()
        assert inputs_in(root, "empty") == []

    @pytest.mark.parametrize(
        "subdir",
        [
            *("..", "../secret", "a/../../secret", "a\\..\\..\\secret", "a/..", "..\\secret", "./../secret"),
            *("/etc", "//etc", "\\\\server\\share", "\\windows", "C:\\pictures", "C:pictures", "c:/pictures"),
            *("a\0", "\0", "a\0/../secret"),
        ],
    )
    def test_path_out_of_the_folder_is_refused(self, root: Path, subdir: str) -> None:
        assert "is not allowed" in refusal(root, subdir)

    def test_absolute_path_is_refused_even_if_it_is_inside(self, root: Path) -> None:
        assert "is not allowed" in refusal(root, str(root / "a"))

    def test_folder_link_out_of_the_folder_is_refused(self, root: Path) -> None:
        (root / "link").symlink_to(root.parent / "secret")
        assert "leads out" in refusal(root, "link")
        assert "leads out" in refusal(root, "link/.")

    def test_file_link_out_of_the_folder_is_refused(self, root: Path) -> None:
        (root / "a" / "mine.png").symlink_to(root.parent / "secret" / "private.png")
        assert refusal(root, "a") == "'mine.png' is a link that leads out of the input folder."

    def test_link_inside_is_followed(self, root: Path) -> None:
        (root / "b").symlink_to("a")
        assert len(inputs_in(root, "b")) == 5

    def test_input_folder_may_itself_be_a_link(self, root: Path) -> None:
        link = root.parent / "link"
        link.symlink_to(root)
        assert len(inputs_in(link, "a")) == 5

    def test_folder_with_the_same_prefix_is_not_inside(self, root: Path) -> None:
        neighbour = root.parent / "inputs-of-others"
        neighbour.mkdir()
        (root / "link").symlink_to(neighbour)
        assert "leads out" in refusal(root, "link")

    @pytest.mark.parametrize("subdir", ["nothing", "a/notes.txt", "x" * 5000, "\ud800", "loop"])
    def test_unreadable_folder_is_refused_with_a_reason(self, root: Path, subdir: str) -> None:
        (root / "loop").symlink_to("loop")
        assert "cannot be read" in refusal(root, subdir)

    @given(st.text(max_size=20) | st.lists(st.sampled_from(["a", "..", ".", "/", "\\", "\0", "C:"])).map("".join))
    def test_accepted_folder_is_inside_the_input_folder(
        self, tmp_path_factory: pytest.TempPathFactory, subdir: str
    ) -> None:
        base = tmp_path_factory.getbasetemp() / "no-way-out"
        inside = base / "inputs" / "a"
        inside.mkdir(parents=True, exist_ok=True)
        for folder in (base, inside.parent, inside):
            (folder / "x.png").write_bytes(b"x")
        try:
            found = inputs_in(inside.parent, subdir)
        except InvalidInput:
            return
        assert all(path.resolve().is_relative_to(inside.parent) for path in found)


class TestNaturalOrder:
    def test_numbers_are_compared_by_value(self) -> None:
        names = ["10", "9", "009", "a", "1", "a10b2", "a10b10", "a2"]
        assert sorted(names, key=natural_key) == ["1", "009", "9", "10", "a", "a2", "a10b2", "a10b10"]

    @given(st.data())
    def test_order_is_total(self, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.text("0123456789ab²٣ é.-", max_size=12)))
        assert sorted(names, key=natural_key) == sorted(data.draw(st.permutations(names)), key=natural_key)

    def test_long_numbers_are_compared(self) -> None:
        assert sorted(["9" * 5000, "1" + "0" * 5000, "7"], key=natural_key)[0] == "7"


def test_file_kind_follows_the_extension() -> None:
    names = ["a.PNG", "b.mp4", "c.ogg", "d.txt", "png", ".png", "e.tar.webm"]
    assert [kind_of(name) for name in names] == ["image", "video", "audio", None, None, None, "video"]


class TestReadableNames:
    def test_name_has_number_label_and_seed(self) -> None:
        assert readable_name("red fox · walks on", 42, 7, ".mp4") == "0007_red-fox-walks-on_seed42.mp4"
        assert readable_name("red fox", None, 7, "MP4") == "0007_red-fox.mp4"
        assert readable_name("", None, 7, "") == "0007"

    def test_letters_of_all_scripts_are_kept(self) -> None:
        assert readable_name("Füchse: 狐 🦊 हिन्दी", None, 1, "png") == "0001_Füchse-狐-हिन्दी.png"

    @given(st.text(), st.none() | st.integers(0, 2**63), st.integers(0, 10**6), st.text(max_size=12))
    def test_readable_names_are_valid_on_every_system(self, label: str, seed: int | None, n: int, suffix: str) -> None:
        name = readable_name(label, seed, n, suffix)
        assert not re.search(r'[<>:"/\\|?*\x00-\x1f]', name)
        assert name == name.strip(" .")
        assert len(name.encode()) <= 200
        assert PureWindowsPath(name).name == name
        assert not PureWindowsPath(name).is_reserved()

    @given(st.text(), st.text(), st.integers(0, 10**6), st.integers(0, 10**6))
    def test_different_numbers_have_different_names(self, one: str, other: str, n: int, m: int) -> None:
        first, second = (
            readable_name(label, None, number, "png").casefold() for label, number in ((one, n), (other, m))
        )
        assert (first != second) or n == m

    def test_name_is_a_valid_file_name(self, tmp_path: Path) -> None:
        name = readable_name('a/b\\c: "d" <e> |f| *?\n' + "狐" * 300, 2**63 - 1, 10_000, ".webp")
        (tmp_path / name).write_bytes(b"x")
        assert os.listdir(tmp_path) == [name]  # noqa: PTH208


def prompts(tmp_path: Path, content: str | bytes) -> list[str]:
    file = tmp_path / "prompts.txt"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return prompts_from(file)


class TestPrompts:
    def test_prompts_are_one_per_line(self, tmp_path: Path) -> None:
        assert prompts(tmp_path, "a cat\n\n  a dog, running  \r\n# a hash\n") == ["a cat", "a dog, running", "# a hash"]

    def test_multiline_prompts_are_separated_by_rules(self, tmp_path: Path) -> None:
        found = prompts(tmp_path, "a cat\non a roof\n\nat night\n---\r\na dog\n --- \n---\n")
        assert found == ["a cat\non a roof\n\nat night", "a dog"]

    def test_rules_inside_a_line_do_not_end_a_prompt(self, tmp_path: Path) -> None:
        assert prompts(tmp_path, "a\u2028b\x0bc 🐈 \"d\" 'e' ----\n") == ["a\u2028b\x0bc 🐈 \"d\" 'e' ----"]

    def test_byte_order_mark_is_ignored(self, tmp_path: Path) -> None:
        assert prompts(tmp_path, b"\xef\xbb\xbfa cat") == ["a cat"]

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (b"", "There is no prompt"),
            (b"\n \n---\n", "There is no prompt"),
            (b"\xffa", "not text in UTF-8"),
            (b"\xff\xfea", "not text in UTF-8"),
            (b"a\x00b", "cannot be stored"),
            (b"a" * (MAX_PROMPT_BYTES + 1), "too large"),
        ],
    )
    def test_invalid_prompt_list_is_refused(self, tmp_path: Path, content: bytes, why: str) -> None:
        with pytest.raises(InvalidInput, match=why):
            prompts(tmp_path, content)

    def test_missing_prompt_file_is_reported(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="cannot be read"):
            prompts_from(tmp_path / "none.txt")
        with pytest.raises(InvalidInput, match="cannot be read"):
            prompts_from(tmp_path)
