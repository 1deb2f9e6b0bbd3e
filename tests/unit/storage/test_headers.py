"""Header values from user input."""

import re
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyrelay.storage.headers import content_disposition, guess_content_type, safe_filename


@settings(deadline=None)
@given(filename=st.text())
def test_no_file_name_breaks_out_of_its_header(filename: str) -> None:
    header = content_disposition(filename)
    assert re.fullmatch(
        r"attachment; filename=\"[ !#-\[\]-~]+\"(; filename\*=UTF-8''[\w!#$&+.^`|~%-]+)?", header, re.ASCII
    )
    assert len(header) < 4000


@settings(deadline=None)
@given(filename=st.text(st.characters(categories=["L", "N", "So"]), min_size=1, max_size=50))
def test_browsers_read_the_name_that_was_given(filename: str) -> None:
    plain, _, encoded = content_disposition(filename).partition("; filename*=UTF-8''")
    shown = unquote(encoded) or plain.removeprefix('attachment; filename="').removesuffix('"')
    assert shown == filename


@settings(deadline=None)
@given(filename=st.text(max_size=400))
def test_safe_name_stays_as_it_is(filename: str) -> None:
    assert safe_filename(safe_filename(filename)) == safe_filename(filename)


@pytest.mark.parametrize("filename", ["", ".", "..", "/", "a/../..", "\n", "\u202e", "C:\\"])
def test_download_always_has_a_name(filename: str) -> None:
    assert re.search(r'filename="[\w:]+"', content_disposition(filename))


def test_only_the_last_part_of_a_path_is_a_name() -> None:
    assert content_disposition("/etc/passwd") == 'attachment; filename="passwd"'
    assert content_disposition("C:\\videos\\a.mp4") == 'attachment; filename="a.mp4"'


def test_letters_cannot_be_turned_around() -> None:
    assert content_disposition("a\u202egpj.exe") == 'attachment; filename="agpj.exe"'


def test_long_name_keeps_its_extension() -> None:
    header = content_disposition("x" * 1000 + ".mp4")
    assert header.endswith('x.mp4"')
    assert len(header) < 200


@pytest.mark.parametrize(
    ("path", "content_type"), [("a/b.png", "image/png"), ("a.webp", "image/webp"), ("a.mp4", "video/mp4"), ("a", None)]
)
def test_name_suggests_a_content_type(path: str, content_type: str | None) -> None:
    assert guess_content_type(path) == content_type
