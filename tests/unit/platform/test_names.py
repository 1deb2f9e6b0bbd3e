"""Names and paths are made valid for Windows on every system."""

import unicodedata
from pathlib import Path, PureWindowsPath

import pytest

from comfyrelay.client.files import safe_name
from comfyrelay.desk.batches.folders import inputs_in, prompts_from, readable_name
from comfyrelay.desk.batches.output_copies import folder_name
from comfyrelay.errors import InvalidInput
from comfyrelay.system import safe_names

DEVICES = ("CON", "con", "nul.txt", "aux.tar.gz", "COM1", "lpt9.png", "COM¹", "prn .txt", "CONIN$")
FINE = ("console", "com", "COM10", "nullable.png", "a con", "_con", "x.con", "lpt", "auxiliary.mp4", "été.png")


@pytest.mark.parametrize("name", DEVICES)
def test_windows_device_name_is_changed(name: str) -> None:
    assert not safe_names.is_usable(name)
    other = safe_names.usable_name(name)
    assert other != name
    assert safe_names.is_usable(other)
    assert PureWindowsPath(other).suffix == PureWindowsPath(name).suffix


@pytest.mark.parametrize("name", FINE)
def test_name_similar_to_a_device_is_kept(name: str) -> None:
    assert safe_names.is_usable(name)
    assert safe_names.usable_name(name) == name


@pytest.mark.parametrize("name", ["a:b", "what?.png", 'a"b', "a|b", "a*", "<a>", "end.", "end ", "...", "a\tb"])
def test_characters_that_windows_refuses_are_replaced(name: str) -> None:
    assert not safe_names.is_usable(name)
    assert safe_names.is_usable(safe_names.usable_name(name))


@pytest.mark.parametrize("name", ["हिन्दी", "ภาษาไทย น้ำ", "می\u200cشود", "Tiếng Việt", "தமிழ்", "小さな猫 (2)"])
def test_plain_name_keeps_every_script(name: str) -> None:
    assert safe_names.plain_name(name) == unicodedata.normalize("NFC", name)
    assert safe_names.plain_name(unicodedata.normalize("NFD", name)) == safe_names.plain_name(name)
    assert folder_name(name) == safe_names.plain_name(name)


def test_plain_name_is_short_and_safe() -> None:
    assert safe_names.plain_name("<b>../x: \u202eevil\x1b[0m</b>.") == "b-..-x- -evil-0m-b"
    assert safe_names.plain_name("\u200d…") == ""
    assert len(safe_names.plain_name("猫" * 200).encode()) <= 200
    assert safe_names.plain_name("x" * 200) == "x" * 80


@pytest.mark.parametrize("label", ["CON", "nul", "LPT1", "aux."])
def test_output_folder_is_never_a_device_name(label: str) -> None:
    assert all(map(safe_names.is_usable, folder_name(f"night/{label}").split("/")))


@pytest.mark.parametrize(
    "name", ["C:\\Windows\\win.ini", "\\\\server\\share\\x.png", "..\\..\\x.png", "CON", "a:b.png"]
)
def test_downloaded_file_name_is_valid_on_windows(name: str) -> None:
    found = safe_name(name)
    assert safe_names.is_usable(found)
    assert PureWindowsPath(found).name == found


@pytest.mark.parametrize("path", ["tenants/7/CON", "tenants/7/a.", "tenants/7/a:b", "C:/x", "tenants/nul.png/x", "a?b"])
def test_object_path_invalid_on_windows_is_refused(path: str) -> None:
    assert not safe_names.is_valid_path(path, windows=True)
    assert safe_names.is_valid_path(path, windows=False)
    assert safe_names.is_valid_path("tenants/7/ü 1.png", windows=True)


@pytest.mark.parametrize("subdir", ["C:\\Users", "c:x", "\\\\server\\share", "\\x", "a\\..\\..\\b", "//server/share/x"])
def test_input_folder_cannot_leave_its_drive(subdir: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="without"):
        inputs_in(tmp_path, subdir)


def test_names_that_differ_only_in_case_stay_distinct() -> None:
    first, second = readable_name("Cat", 1, 1, "png"), readable_name("cat", 1, 2, "png")
    assert first.casefold() != second.casefold()


@pytest.mark.parametrize(
    "folder", ["C:\\out", "C:\\Users\\somebody\\" + 12 * "a long name\\", "\\\\server\\share\\out"]
)
def test_name_is_truncated_to_the_path_limit_of_windows(folder: str) -> None:
    place = PureWindowsPath(folder)
    name = readable_name(
        "a cat on the moon " * 20, 2**64 - 1, 12, "png", max_length=safe_names.max_name_length(place, windows=True)
    )
    assert len(str(place / name)) <= safe_names.MAX_PATH_LENGTH
    assert name.startswith("0012_a-cat")
    assert name.endswith(f"_seed{2**64 - 1}.png")


def test_name_without_space_for_a_label_keeps_number_and_seed() -> None:
    assert readable_name("a cat", 7, 3, "png", max_length=0) == "0003_seed7.png"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///C:/Users/J%C3%B6rg%20B/objects", "C:\\Users\\Jörg B\\objects"),
        ("file://localhost/C:/objects", "C:\\objects"),
        ("file://server/share/objects", "\\\\server\\share\\objects"),
        ("file:///objects", None),
        ("file:///", None),
        ("s3://bucket/x", None),
    ],
)
def test_windows_file_url_is_parsed(url: str, path: str | None) -> None:
    assert safe_names.path_of_url(url, windows=True) == path
    if path is not None and "localhost" not in url:
        assert PureWindowsPath(path).as_uri() == url


def test_posix_file_url_is_a_local_folder() -> None:
    assert safe_names.path_of_url("file:///srv/my%20objects", windows=False) == "/srv/my objects"
    assert safe_names.path_of_url("file://server/share", windows=False) is None


@pytest.mark.parametrize(
    ("path", "long"),
    [
        ("C:\\data", "\\\\?\\C:\\data"),
        ("\\\\server\\share\\x", "\\\\?\\UNC\\server\\share\\x"),
        ("\\\\?\\C:\\data", "\\\\?\\C:\\data"),
    ],
)
def test_extended_path_has_no_length_limit(path: str, long: str) -> None:
    assert safe_names.extended_path(PureWindowsPath(path), windows=True) == long


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_prompts_are_read_in_any_encoding_and_line_ending(encoding: str, line_end: str, tmp_path: Path) -> None:
    file = tmp_path / "my prompts.txt"
    file.write_bytes(line_end.join(["a cat", "", "ein Käfer ", ""]).encode(encoding))
    assert prompts_from(file) == ["a cat", "ein Käfer"]
    file.write_bytes(line_end.join(["a cat", "at night", "---", "a dog"]).encode(encoding))
    assert prompts_from(file) == ["a cat\nat night", "a dog"]
