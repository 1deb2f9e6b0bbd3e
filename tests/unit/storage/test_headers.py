"""Header values built from user input are safe."""

import re
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyrelay.storage.headers import content_disposition, guess_content_type, safe_filename


@settings(deadline=None)
@given(filename=st.text())
def test_file_name_stays_inside_its_header(filename: str) -> None:
    header = content_disposition(filename)
    assert re.fullmatch(
        r"attachment; filename=\"[ !#-\[\]-~]+\"(; filename\*=UTF-8''[\w!#$&+.^`|~%-]+)?", header, re.ASCII
    )
    assert len(header) < 4000


@settings(deadline=None)
@given(filename=st.text(st.characters(categories=["L", "N", "So"]), min_size=1, max_size=50))
def test_header_round_trips_the_file_name(filename: str) -> None:
    plain, _, encoded = content_disposition(filename).partition("; filename*=UTF-8''")
    shown = unquote(encoded) or plain.removeprefix('attachment; filename="').removesuffix('"')
    assert shown == filename


@settings(deadline=None)
@given(filename=st.text(max_size=400))
def test_safe_filename_is_idempotent(filename: str) -> None:
    assert safe_filename(safe_filename(filename)) == safe_filename(filename)


@pytest.mark.parametrize("filename", ["", ".", "..", "/", "a/../..", "\n", "\u202e", "C:\\"])
def test_download_always_has_a_name(filename: str) -> None:
    assert re.search(r'filename="[\w:]+"', content_disposition(filename))


def test_path_is_reduced_to_its_last_part() -> None:
    assert content_disposition("/etc/passwd") == 'attachment; filename="passwd"'
    assert content_disposition("C:\\videos\\a.mp4") == 'attachment; filename="a.mp4"'


def test_bidirectional_override_is_removed() -> None:
    assert content_disposition("a\u202egpj.exe") == 'attachment; filename="agpj.exe"'


def test_long_name_keeps_its_extension() -> None:
    header = content_disposition("x" * 1000 + ".mp4")
    assert header.endswith('x.mp4"')
    assert len(header) < 200


@pytest.mark.parametrize(
    ("path", "content_type"), [("a/b.png", "image/png"), ("a.webp", "image/webp"), ("a.mp4", "video/mp4"), ("a", None)]
)
def test_content_type_is_guessed_from_the_name(path: str, content_type: str | None) -> None:
    assert guess_content_type(path) == content_type
