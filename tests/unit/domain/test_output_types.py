"""Allowed output types of a job."""

import pytest

from comfyrelay.domain.outputs import output_type


@pytest.mark.parametrize(
    ("reported", "declared", "stored"),
    [
        ("image/png", "image/png", "image/png"),
        ("IMAGE/PNG", "image/png", "IMAGE/PNG"),
        ("image/webp", "image/png", "image/webp"),
        ("video/webm; codecs=vp9", "video/mp4", "video/webm; codecs=vp9"),
        ("audio/flac", "audio/mpeg", "audio/flac"),
        ("image/png", "video/mp4", None),
        ("image/svg+xml", "image/png", None),
        ("image/png", "image/svg+xml", None),
        ("text/plain; charset=utf-8", "text/plain", "text/plain; charset=utf-8"),
        ("text/html", "text/plain", None),
        ("application/json", "text/plain", None),
        # A text in place of a declared image is refused.
        ("text/plain", "image/png", None),
        # Without a declared type any file is allowed, and browsers only download it.
        ("text/html", "application/octet-stream", "application/octet-stream"),
    ],
)
def test_output_has_the_declared_media_kind(reported: str, declared: str, stored: str | None) -> None:
    assert output_type(reported, declared) == stored
