"""Allowed output types of a job."""

import pytest

from comfyrelay.domain.outputs import output_type


@pytest.mark.parametrize(
    ("told", "promised", "kept"),
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
        # a text in place of a promised image is refused
        ("text/plain", "image/png", None),
        # without a promised type any file is allowed, and a browser only downloads it
        ("text/html", "application/octet-stream", "application/octet-stream"),
    ],
)
def test_output_is_of_the_kind_that_was_promised(told: str, promised: str, kept: str | None) -> None:
    assert output_type(told, promised) == kept
