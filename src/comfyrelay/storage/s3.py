"""Object storage in an S3 bucket, at AWS or a compatible server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError, ClientError

from comfyrelay.clock import utc_now
from comfyrelay.errors import ConfigurationError, InvalidInput, StorageUnavailable
from comfyrelay.storage.cors import allow_origins
from comfyrelay.storage.headers import check_content_type, content_disposition, guess_content_type
from comfyrelay.storage.paths import check_path, check_range, is_path, no_object
from comfyrelay.storage.s3_client import connect
from comfyrelay.storage.s3_errors import error_code, is_missing, translate
from comfyrelay.storage.values import ObjectEntry, ObjectStat, SignedUpload

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import CopySourceTypeDef, GetObjectOutputTypeDef, ObjectIdentifierTypeDef

T = TypeVar("T")

PIECE_BYTES = 1024 * 1024
# limits of S3
LONGEST_TTL_SECONDS = 7 * 24 * 3600
REMOVED_AT_ONCE = 1000
# Many stores copy at most 5 GB at once, and large requests may time out.
COPYING = TransferConfig(multipart_threshold=1024**3, multipart_chunksize=256 * 1024**2)


class S3Objects:
    """Objects under a prefix of a bucket. Pre-signed URLs expire no later than the credentials that signed them."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._clock = clock
        self._client = connect(endpoint_url=endpoint_url, region=region)

    async def put(self, path: str, data: bytes) -> None:
        key, kind = self._key(path), guess_content_type(path) or "application/octet-stream"
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
            raise self._translated(error, path) from error
        return ObjectStat(
            size=head["ContentLength"], content_type=head.get("ContentType"), modified_at=head["LastModified"]
        )

    async def stream(self, path: str, *, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        check_range(start, length)
        if length == 0:
            # S3 cannot return an empty range
            if not await self.exists(path):
                raise no_object(path)
            return
        answer = await self._open(path, start, length)
        if answer is None:
            return
        body = answer["Body"]
        try:
            while piece := await self._call(path, lambda: body.read(PIECE_BYTES)):
                yield piece
        finally:
            body.close()

    async def copy(self, source: str, target: str) -> ObjectStat:
        """Copy the object inside the store."""
        origin: CopySourceTypeDef = {"Bucket": self._bucket, "Key": self._key(source)}
        key = self._key(target)
        await self._call(source, lambda: self._client.copy(origin, self._bucket, key, Config=COPYING))
        if (made := await self.stat(target)) is None:
            raise no_object(target)
        return made

    async def remove(self, path: str) -> None:
        key = self._key(path)
        await self._call(path, lambda: self._client.delete_object(Bucket=self._bucket, Key=key))

    async def remove_many(self, paths: Iterable[str]) -> None:
        keys = iter([self._key(path) for path in paths])
        while batch := tuple(islice(keys, REMOVED_AT_ONCE)):
            await self._remove(batch)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectEntry]:
        arguments: dict[str, Any] = {
            "Bucket": self._bucket,
            "Prefix": f"{self._key(prefix)}/" if prefix else self._prefix,
        }
        while True:
            page = await self._call(prefix, lambda: self._client.list_objects_v2(**arguments))
            for each in page.get("Contents", ()):
                path = each["Key"].removeprefix(self._prefix)
                if is_path(path):
                    yield ObjectEntry(path=path, size=each["Size"], modified_at=each["LastModified"])
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    async def sign_upload(
        self, path: str, *, content_type: str, size: int | None = None, max_size: int | None = None, ttl_seconds: float
    ) -> SignedUpload:
        """Return a URL that accepts one object of this type, and of this size if given.

        S3 cannot enforce a maximum: if the size is unknown, check it after the upload.
        """
        if size is not None and max_size is not None and size > max_size:
            raise InvalidInput(f"The upload is too large: at most {max_size} bytes are allowed.")
        parameters: dict[str, Any] = {"ContentType": check_content_type(content_type)}
        if size is not None:
            parameters["ContentLength"] = size
        expires_at = self._clock() + timedelta(seconds=ttl_seconds)
        url = await self._sign("put_object", path, parameters, ttl_seconds)
        return SignedUpload(url=url, headers={"Content-Type": content_type}, expires_at=expires_at)

    async def sign_download(
        self, path: str, *, ttl_seconds: float, filename: str | None = None, content_type: str | None = None
    ) -> str:
        parameters: dict[str, Any] = {}
        if filename is not None:
            parameters["ResponseContentDisposition"] = content_disposition(filename)
        if content_type is not None:
            parameters["ResponseContentType"] = check_content_type(content_type)
        return await self._sign("get_object", path, parameters, ttl_seconds)

    async def origin(self) -> str | None:
        """The origin of its URLs as signed: boto3 decides whether the bucket is part of the host name."""
        parts = urlsplit(await self.sign_download("origin", ttl_seconds=60))
        return f"{parts.scheme}://{parts.netloc}"

    async def ensure_cors(self, origins: Sequence[str]) -> None:
        await self._call("", lambda: allow_origins(self._client, self._bucket, origins))

    async def check(self) -> None:
        # a listing, because the answer to HEAD has no body to tell a wrong bucket from a wrong key
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
            raise self._translated(error, path) from error

    async def _remove(self, keys: Sequence[str]) -> None:
        wanted: Sequence[ObjectIdentifierTypeDef] = [{"Key": key} for key in keys]
        answer = await self._call(
            "", lambda: self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": wanted, "Quiet": True})
        )
        if failures := [each for each in answer.get("Errors", ()) if each.get("Code") != "NoSuchKey"]:
            reason = failures[0].get("Code")
            raise StorageUnavailable(f"The S3 server did not remove {len(failures)} of {len(keys)} objects ({reason}).")

    async def _sign(self, operation: str, path: str, parameters: dict[str, Any], ttl_seconds: float) -> str:
        if ttl_seconds > LONGEST_TTL_SECONDS:
            raise ConfigurationError("A pre-signed URL of S3 lives for seven days at most.")
        parameters |= {"Bucket": self._bucket, "Key": self._key(path)}
        # in a thread, because credentials may need renewal
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
            raise self._translated(error, path) from error

    def _translated(self, error: BotoCoreError | ClientError, path: str) -> Exception:
        return translate(error, bucket=self._bucket, path=path)
