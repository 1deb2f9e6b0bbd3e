"""Create an S3 client with the standard AWS settings for credentials, region and endpoint."""

import os
from functools import cache
from typing import TYPE_CHECKING

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.loaders import Loader, create_loader

from comfyrelay.errors import ConfigurationError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def connect(endpoint_url: str | None) -> "S3Client":
    """Return a thread-safe client, without sending a request."""
    endpoint = endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None
    # boto3 reads only AWS_DEFAULT_REGION.
    region = os.environ.get("AWS_REGION") or None
    try:
        core = botocore.session.get_session()
        core.register_component("data_loader", _loader(core.get_config_variable("data_path")))
        session = boto3.session.Session(botocore_session=core, region_name=region)
        return session.client(
            "s3",
            # Other S3 servers have no regions, but the signature needs one.
            region_name=session.region_name or ("us-east-1" if endpoint else None),
            endpoint_url=endpoint,
            config=_config(is_compatible_server=endpoint is not None),
        )
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(f"The configuration of S3 is invalid: {error}") from None


@cache
def _loader(search_path: str | None) -> Loader:
    """Return a loader that parses the slow service description only once per process."""
    return create_loader(search_path)


def _config(*, is_compatible_server: bool) -> Config:
    return Config(
        signature_version="s3v4",
        connect_timeout=5,
        read_timeout=30,
        retries={"mode": "standard", "total_max_attempts": 3},
        max_pool_connections=50,
        # Many S3 servers support only MD5, and a pre-signed upload cannot contain newer checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # `virtual` makes boto3 sign for the bucket's region. Other servers rarely have a host name per bucket.
        s3={"addressing_style": "path" if is_compatible_server else "virtual"},
    )
