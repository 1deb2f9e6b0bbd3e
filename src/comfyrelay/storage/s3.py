"""Store objects in an S3 bucket, on AWS or a compatible server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import timedelta
from itertools import islice
from math import ceil, inf
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import structlog
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError, ClientError

from comfyrelay.clock import utc_now
from comfyrelay.errors import ConfigurationError, StorageUnavailable
from comfyrelay.media_types import OCTET_STREAM
from comfyrelay.storage.cors import allow_origins
from comfyrelay.storage.headers import check_content_type, content_disposition, guess_content_type
from comfyrelay.storage.paths import check_path, check_range, is_path, no_object, too_large
from comfyrelay.storage.s3_client import connect
from comfyrelay.storage.s3_errors import error_code, is_missing, translate
from comfyrelay.storage.values import ObjectEntry, ObjectStat, SignedUpload

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import CopySourceTypeDef, GetObjectOutputTypeDef, ObjectIdentifierTypeDef

T = TypeVar("T")
log = structlog.get_logger(__name__)

CHUNK_BYTES = 1024 * 1024
# Limits of S3.
MAX_TTL_SECONDS = 7 * 24 * 3600
MAX_REMOVED_PER_CALL = 1000
# Errors of servers without conditional writes. Some of these errors also have other causes.
NO_CONDITIONS = {"400", "501", "InvalidArgument", "InvalidRequest", "NotImplemented"}
# A failed check for conditional writes is repeated after this time. Until then, callers get its error. During an
# outage, a check takes up to 90 seconds.
FAILED_CHECK_SECONDS = 10
# Many servers copy at most 5 GB per request, and copying more may time out.
COPY_CONFIG = TransferConfig(multipart_threshold=1024**3, multipart_chunksize=256 * 1024**2)


class S3Objects:
    """Objects under a prefix of a bucket. Pre-signed URLs expire no later than the credentials that signed them."""

    def __init__(self, bucket: str, prefix: str = "", *, endpoint_url: str | None = None) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._client = connect(endpoint_url)
        # Whether the server refuses to replace objects. Checked for the first upload URL with `once`.
        self._refusal_check: asyncio.Task[bool] | None = None
        self._check_again_at = inf

    async def put(self, path: str, data: bytes) -> None:
        key, kind = self._key(path), guess_content_type(path) or OCTET_STREAM
        await self._call(
            path, lambda: self._client.put_object(Bucket=self._bucket, Key=key, Body=data, ContentType=kind)
        )

    async def get(self, path: str) -> bytes:
        return b"".join([piece async for piece in self.stream(path)])

    async def exists(self, path: str) -> bool:
        return await self.stat(path) is not None

    async def stat(self, path: str) -> ObjectStat | None:
        key = self._key(path)
        try:
            head = await asyncio.to_thread(lambda: self._client.head_object(Bucket=self._bucket, Key=key))
        except (BotoCoreError, ClientError) as error:
            if is_missing(error):
                return None
            raise translate(error, bucket=self._bucket, path=path) from error
        return ObjectStat(
            size=head["ContentLength"],
            content_type=head.get("ContentType"),
            modified_at=head["LastModified"],
            etag=head["ETag"],
        )

    async def stream(self, path: str, *, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        check_range(start, length)
        if length == 0:
            # S3 cannot return an empty range.
            if not await self.exists(path):
                raise no_object(path)
            return
        answer = await self._open(path, start, length)
        if answer is None:
            return
        body = answer["Body"]
        try:
            while piece := await self._call(path, lambda: body.read(CHUNK_BYTES)):
                yield piece
        finally:
            body.close()

    async def copy(self, source: str, target: str) -> ObjectStat:
        origin: CopySourceTypeDef = {"Bucket": self._bucket, "Key": self._key(source)}
        key = self._key(target)
        await self._call(source, lambda: self._client.copy(origin, self._bucket, key, Config=COPY_CONFIG))
        if (copied := await self.stat(target)) is None:
            raise no_object(target)
        return copied

    async def remove(self, path: str) -> None:
        key = self._key(path)
        await self._call(path, lambda: self._client.delete_object(Bucket=self._bucket, Key=key))

    async def remove_many(self, paths: Iterable[str]) -> None:
        keys = iter([self._key(path) for path in paths])
        while batch := tuple(islice(keys, MAX_REMOVED_PER_CALL)):
            await self._remove(batch)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectEntry]:
        arguments: dict[str, Any] = {
            "Bucket": self._bucket,
            "Prefix": f"{self._key(prefix)}/" if prefix else self._prefix,
        }
        while True:
            page = await self._call(prefix, lambda: self._client.list_objects_v2(**arguments))
            for entry in page.get("Contents", ()):
                path = entry["Key"].removeprefix(self._prefix)
                if is_path(path):
                    yield ObjectEntry(path=path, size=entry["Size"], modified_at=entry["LastModified"])
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    async def sign_upload(
        self,
        path: str,
        *,
        content_type: str,
        size: int | None = None,
        max_size: int | None = None,
        ttl_seconds: float,
        once: bool = False,
        for_worker: bool = False,  # noqa: ARG002 -- only our own server counts connections
    ) -> SignedUpload:
        if size is not None and max_size is not None and size > max_size:
            raise too_large(max_size)
        parameters: dict[str, Any] = {"ContentType": check_content_type(content_type)}
        if size is not None:
            parameters["ContentLength"] = size
        headers = {"Content-Type": content_type}
        if once and await self._can_sign_once():
            parameters["IfNoneMatch"] = headers["If-None-Match"] = "*"
        expires_at = utc_now() + timedelta(seconds=ttl_seconds)
        url = await self._sign("put_object", path, parameters, ttl_seconds)
        return SignedUpload(url=url, headers=headers, expires_at=expires_at)

    async def sign_download(
        self,
        path: str,
        *,
        ttl_seconds: float,
        filename: str | None = None,
        content_type: str | None = None,
        for_worker: bool = False,  # noqa: ARG002 -- only our own server counts connections
    ) -> str:
        parameters: dict[str, Any] = {}
        if filename is not None:
            parameters["ResponseContentDisposition"] = content_disposition(filename)
        if content_type is not None:
            parameters["ResponseContentType"] = check_content_type(content_type)
        return await self._sign("get_object", path, parameters, ttl_seconds)

    async def origin(self) -> str | None:
        """Return the origin of a signed URL, because boto3 decides whether the bucket is part of the host name."""
        parts = urlsplit(await self.sign_download("origin", ttl_seconds=60))
        return f"{parts.scheme}://{parts.netloc}"

    async def ensure_cors(self, origins: Sequence[str]) -> None:
        await self._call("", lambda: allow_origins(self._client, self._bucket, origins))

    async def check(self) -> None:
        # The response to HEAD has no body and cannot distinguish a wrong bucket from a wrong key. A listing can.
        await self._call("", lambda: self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1))

    async def _open(self, path: str, start: int, length: int | None) -> "GetObjectOutputTypeDef | None":
        arguments: dict[str, Any] = {"Bucket": self._bucket, "Key": self._key(path)}
        if start or length is not None:
            arguments["Range"] = f"bytes={start}-{'' if length is None else start + length - 1}"
        try:
            return await asyncio.to_thread(lambda: self._client.get_object(**arguments))
        except (BotoCoreError, ClientError) as error:
            if error_code(error) == "InvalidRange":
                return None
            raise translate(error, bucket=self._bucket, path=path) from error

    async def _remove(self, keys: Sequence[str]) -> None:
        wanted: Sequence[ObjectIdentifierTypeDef] = [{"Key": key} for key in keys]
        answer = await self._call(
            "", lambda: self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": wanted, "Quiet": True})
        )
        if failures := [failure for failure in answer.get("Errors", ()) if failure.get("Code") != "NoSuchKey"]:
            reason = failures[0].get("Code")
            raise StorageUnavailable(f"The S3 server did not remove {len(failures)} of {len(keys)} objects ({reason}).")

    async def _can_sign_once(self) -> bool:
        """Whether the server supports conditional writes, which do not replace objects. Compatible servers may ignore
        the condition, or refuse every request with it."""
        if self._refusal_check is None or asyncio.get_running_loop().time() >= self._check_again_at:
            self._check_again_at = inf
            self._refusal_check = asyncio.create_task(self._refuses_replacement())
        # Canceling one caller must not cancel the check for the others.
        return await asyncio.shield(self._refusal_check)

    async def _refuses_replacement(self) -> bool:
        path = f"checks/{uuid4()}"
        try:
            refuses = await self._call(path, lambda: self._try_to_replace(self._key(path)))
        except BaseException:
            self._check_again_at = asyncio.get_running_loop().time() + FAILED_CHECK_SECONDS
            raise
        if not refuses:
            log.warning("storage.uploads_can_be_replaced", bucket=self._bucket)
        return refuses

    def _try_to_replace(self, key: str) -> bool:
        try:
            for _ in range(2):
                self._client.put_object(Bucket=self._bucket, Key=key, Body=b"", IfNoneMatch="*")
        except ClientError as error:
            if error_code(error) in NO_CONDITIONS:
                # If the condition was the cause, the request succeeds without it.
                self._client.put_object(Bucket=self._bucket, Key=key, Body=b"")
                return False
            if error_code(error) != "PreconditionFailed":
                raise
            return True
        finally:
            self._client.delete_object(Bucket=self._bucket, Key=key)
        return False

    async def _sign(self, operation: str, path: str, parameters: dict[str, Any], ttl_seconds: float) -> str:
        if ttl_seconds > MAX_TTL_SECONDS:
            raise ConfigurationError("A pre-signed URL of S3 is valid for at most seven days. Set a shorter lifetime.")
        parameters |= {"Bucket": self._bucket, "Key": self._key(path)}
        # Signing may renew credentials, which blocks.
        return await self._call(
            path,
            lambda: self._client.generate_presigned_url(operation, Params=parameters, ExpiresIn=ceil(ttl_seconds)),
        )

    def _key(self, path: str) -> str:
        check_path(path)
        return f"{self._prefix}{path}"

    async def _call(self, path: str, function: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(function)
        except (BotoCoreError, ClientError) as error:
            raise translate(error, bucket=self._bucket, path=path) from error
