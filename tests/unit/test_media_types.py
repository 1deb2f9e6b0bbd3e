"""File names give the same media types on every machine."""

import pytest

from comfyrelay.domain.properties import _KIND_OF
from comfyrelay.media_types import guess_media_type


@pytest.mark.parametrize("suffix", sorted(_KIND_OF))
def test_every_media_file_of_a_folder_can_be_uploaded(suffix: str) -> None:
    assert (guess_media_type(f"My File.{suffix.upper()}") or "").startswith(f"{_KIND_OF[suffix]}/")


def test_name_without_an_extension_has_no_media_type() -> None:
    assert guess_media_type("picture") is None
