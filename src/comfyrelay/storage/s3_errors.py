"""Translate S3 errors."""

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
    """Return the error code, which is only the HTTP status if the answer has no body."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def is_missing(error: Exception) -> bool:
    """Whether the object does not exist."""
    return error_code(error) in _MISSING


def translate(error: BotoCoreError | ClientError, *, bucket: str, path: str) -> ComfyRelayError:
    """Return our error that says what is wrong and what to do."""
    if isinstance(error, ClientError):
        return _translate_answer(error, bucket=bucket, path=path)
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return ConfigurationError(
            "There are no credentials for S3. "
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile or a role."
        )
    if isinstance(error, ConnectionError | HTTPClientError | IncompleteReadError):
        # users may read this, so it omits the address; the cause has it
        return StorageUnavailable(f"The S3 server cannot be reached ({type(error).__name__}).")
    return ConfigurationError(f"S3 cannot be used as it is configured: {error}")


def _translate_answer(error: ClientError, *, bucket: str, path: str) -> ComfyRelayError:
    code = error_code(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _MISSING:
        return no_object(path)
    if code == "NoSuchBucket":
        return ConfigurationError(f"There is no S3 bucket {bucket!r}. Make it, or correct the storage URL.")
    if code in _DENIED:
        return ConfigurationError(
            f"The S3 server does not let us use the bucket {bucket!r} ({code}). "
            "Check the credentials, the region, and that they may list, read, write and delete."
        )
    if code in _TEMPORARY or status >= 500:
        return StorageUnavailable(f"The S3 server has trouble ({code or status}).")
    return ConfigurationError(f"The S3 server refused a request for the bucket {bucket!r} ({code or status}).")
