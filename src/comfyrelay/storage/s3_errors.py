"""Translate errors of S3 and boto3."""

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
)

from comfyrelay.errors import ComfyRelayError, ConfigurationError, StorageUnavailable
from comfyrelay.storage.paths import no_object

_MISSING = {"404", "NoSuchKey", "NotFound"}
_DENIED = {
    *("401", "403", "AccessDenied", "AccountProblem", "AllAccessDisabled", "AuthorizationHeaderMalformed"),
    *("ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "RequestTimeTooSkewed", "SignatureDoesNotMatch"),
}
_TEMPORARY = {"429", "RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"}


def error_code(error: Exception) -> str:
    """Return the error code. For a response without a body, it is the HTTP status."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def is_missing(error: Exception) -> bool:
    """Whether the object does not exist."""
    return error_code(error) in _MISSING


def translate(error: BotoCoreError | ClientError, *, bucket: str, path: str) -> ComfyRelayError:
    """Return the ComfyRelay error for an error of boto3, with advice."""
    if isinstance(error, ClientError):
        return _translate_answer(error, bucket=bucket, path=path)
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return ConfigurationError(
            "S3 credentials are missing. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile or role."
        )
    if isinstance(error, ConnectionError | HTTPClientError | IncompleteReadError):
        # Users may see this message, so only the cause contains the address.
        return StorageUnavailable(f"The S3 server cannot be reached ({type(error).__name__}).")
    return ConfigurationError(f"The configuration of S3 is invalid: {error}")


def _translate_answer(error: ClientError, *, bucket: str, path: str) -> ComfyRelayError:
    code = error_code(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _MISSING:
        return no_object(path)
    if code == "NoSuchBucket":
        return ConfigurationError(f"There is no S3 bucket {bucket!r}. Create it, or correct the storage URL.")
    if code in _DENIED:
        return ConfigurationError(
            f"The S3 server denied access to the bucket {bucket!r} ({code}). "
            "Check the credentials, the region, and the permissions to list, read, write and delete."
        )
    if code in _TEMPORARY or status >= 500:
        return StorageUnavailable(f"The S3 server is temporarily unavailable ({code or status}).")
    return ConfigurationError(f"The S3 server refused a request for the bucket {bucket!r} ({code or status}).")
