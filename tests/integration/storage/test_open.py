"""A URL determines which store is opened."""

import subprocess
import sys
from pathlib import Path

import pytest

from comfyrelay.errors import ConfigurationError, Forbidden
from comfyrelay.storage.local import LocalObjects
from comfyrelay.storage.objects import open_objects
from tests.support.storage import BUCKET, SECRETS, Clock


async def test_file_url_opens_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my objects"
    await open_objects(folder.as_uri()).put("a", b"x")
    assert (folder / "a").read_bytes() == b"x"


async def test_local_store_signs_urls_with_its_base_url_secret_and_clock(tmp_path: Path) -> None:
    clock = Clock()
    store = open_objects(tmp_path.as_uri(), base_url="http://relay.test", secrets=SECRETS, clock=clock)
    url = await store.sign_download("a", ttl_seconds=60)
    assert url.startswith("http://relay.test/files/a?")
    assert isinstance(store, LocalObjects)
    query = dict(field.split("=") for field in url.partition("?")[2].split("&"))
    store.verify("GET", "a", query)
    clock.later_seconds = 70
    with pytest.raises(Forbidden, match="expired"):
        store.verify("GET", "a", query)


@pytest.mark.parametrize("prefix", ["", "/", "/deep/my%20prefix/"])
async def test_s3_url_opens_a_bucket(aws: None, prefix: str) -> None:
    await open_objects(f"s3://{BUCKET}{prefix}").put("opened", prefix.encode())
    path = f"{prefix.strip('/').replace('%20', ' ')}/opened".strip("/")
    assert await open_objects(f"s3://{BUCKET}").get(path) == prefix.encode()


@pytest.mark.parametrize("url", ["ftp://host/x", "objects", "", "/objects", "https://host/x"])
def test_unsupported_url_is_refused_with_the_supported_ones(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"file:///absolute/path or s3://bucket/prefix"):
        open_objects(url)


@pytest.mark.parametrize("url", ["file://", "file:///", "file://host/x"])
def test_file_url_must_name_a_folder(url: str) -> None:
    with pytest.raises(ConfigurationError, match="file:///absolute/path"):
        open_objects(url)


@pytest.mark.parametrize("url", ["s3:", "s3://", "s3:///prefix", "s3://key:hidden@bucket/prefix", "s3://bucket:9000/x"])
def test_s3_url_must_name_a_bucket_and_no_secret(url: str) -> None:
    with pytest.raises(ConfigurationError, match="s3://bucket/prefix") as caught:
        open_objects(url)
    assert "hidden" not in caught.value.detail


def test_folder_does_not_need_boto3() -> None:
    program = "import sys, comfyrelay.media.inspection; sys.exit('boto3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
