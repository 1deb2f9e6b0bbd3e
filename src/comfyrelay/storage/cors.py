"""Allow web pages to use an S3 bucket, by means of a CORS rule."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from comfyrelay.errors import ConfigurationError
from comfyrelay.storage.s3_errors import error_code

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CORSRuleOutputTypeDef, CORSRuleTypeDef

RULE_ID = "comfyrelay"


def allow_origins(client: "S3Client", bucket: str, origins: Sequence[str]) -> None:
    """Allow pages of these origins to upload and download. Keeps other rules of the bucket."""
    rule: CORSRuleTypeDef = {
        "ID": RULE_ID,
        "AllowedOrigins": origins,
        "AllowedMethods": ["GET", "HEAD", "PUT"],
        "AllowedHeaders": ["*"],
        "ExposeHeaders": ["ETag"],
        "MaxAgeSeconds": 3600,
    }
    try:
        others = [other for other in _rules(client, bucket) if other.get("ID") != RULE_ID]
        client.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": [*others, rule]})
    except ClientError as error:
        raise ConfigurationError(
            f"The S3 server does not accept CORS rules ({error_code(error)}). "
            f"In its own configuration, allow GET, HEAD and PUT from {', '.join(origins)}."
        ) from error


def _rules(client: "S3Client", bucket: str) -> "Sequence[CORSRuleOutputTypeDef]":
    try:
        return client.get_bucket_cors(Bucket=bucket).get("CORSRules", [])
    except ClientError as error:
        if error_code(error) != "NoSuchCORSConfiguration":
            raise
        return []
