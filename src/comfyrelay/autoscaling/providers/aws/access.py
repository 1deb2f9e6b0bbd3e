"""AWS calls in threads, with bounded retries and classified errors."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from comfyrelay.autoscaling.providers.base import RefusalKind
from comfyrelay.errors import ConfigurationError, ProviderError
from comfyrelay.extras import require
from comfyrelay.retry import Backoff, Retries

# Throttled calls wait for 0.2, 0.4, 0.8 and 1.6 s, or up to twice as long, and then fail. The next tick tries again.
ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.3
MAX_PAUSE_SECONDS = 5.0

# Prefixes, because services append details. Calls for a group that is being changed are retried, too.
_THROTTLED = (
    "Throttl",
    "RequestLimitExceeded",
    "RequestThrottled",
    "TooManyRequests",
    "SlowDown",
    "PriorRequestNotComplete",
    "ResourceContention",
    "ScalingActivityInProgress",
)
_QUOTA = ("MaxSpotInstanceCountExceeded", "VcpuLimitExceeded", "InstanceLimitExceeded", "LimitExceeded")
_CAPACITY = (
    "InsufficientInstanceCapacity",
    "InsufficientCapacity",
    "UnfulfillableCapacity",
    "SpotMaxPriceTooLow",
    "InsufficientHostCapacity",
)


class AwsError(ProviderError):
    """A failed AWS call. `aws_code` is AWS's error code, or empty if AWS did not answer."""

    def __init__(self, detail: str, *, kind: RefusalKind, aws_code: str = "") -> None:
        self.kind = kind
        self.aws_code = aws_code
        super().__init__(detail)


class Aws:
    """The clients for one region, created on first use."""

    def __init__(self, region: str | None = None, *, first_pause_seconds: float = FIRST_PAUSE_SECONDS) -> None:
        require("aws")
        # boto3 only reads AWS_DEFAULT_REGION.
        self._region = region or os.environ.get("AWS_REGION") or None
        self._first_pause_seconds = first_pause_seconds
        self._session: Any = None
        self._clients: dict[str, Any] = {}
        self._creating = asyncio.Lock()

    async def call(self, service: str, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """Return the answer, or raise `AwsError`."""
        retries = Retries(Backoff(first_seconds=self._first_pause_seconds, max_seconds=MAX_PAUSE_SECONDS))
        while True:
            try:
                return await self._call_once(service, operation, arguments)
            except AwsError as error:
                if error.kind is not RefusalKind.THROTTLED or retries.failures + 1 == ATTEMPTS:
                    raise
            await retries.wait()

    async def pages(self, service: str, operation: str, key: str, **arguments: Any) -> list[Any]:
        """Return the items under `key` of all pages."""
        items: list[Any] = []
        token: dict[str, str] = {}
        while True:
            answer = await self.call(service, operation, **arguments, **token)
            items += answer.get(key, ())
            # Some services end with an empty token.
            if not answer.get("NextToken"):
                return items
            token = {"NextToken": answer["NextToken"]}

    async def account(self) -> str:
        account: str = (await self.call("sts", "get_caller_identity"))["Account"]
        return account

    async def close(self) -> None:
        for client in self._clients.values():
            await asyncio.to_thread(client.close)
        self._clients.clear()

    async def _call_once(self, service: str, operation: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        try:
            client = await self._client(service)
            answer: Mapping[str, Any] = await asyncio.to_thread(getattr(client, operation), **arguments)
        except ClientError as error:
            details = error.response.get("Error", {})
            raise _refused(operation, details.get("Code", ""), details.get("Message", "")) from None
        except BotoCoreError as error:
            raise AwsError(f"AWS could not be called: {_sentence(str(error))}", kind=RefusalKind.SETUP) from None
        return answer

    async def _client(self, service: str) -> Any:
        # Creating a client reads files for half a second, and sessions are not thread-safe.
        async with self._creating:
            if service not in self._clients:
                self._clients[service] = await asyncio.to_thread(self._create, service)
        return self._clients[service]

    def _create(self, service: str) -> Any:
        # Slow to import and rarely needed.
        from botocore.config import Config  # noqa: PLC0415
        from botocore.exceptions import NoRegionError  # noqa: PLC0415

        if self._session is None:
            self._session = new_session(self._region)
        config = Config(connect_timeout=3, read_timeout=15, retries={"total_max_attempts": 1})
        try:
            return self._session.client(service, config=config)
        except NoRegionError:
            raise ConfigurationError(
                "The AWS region is not set. Set `region` in the fleet's options, or AWS_REGION."
            ) from None


def new_session(region: str | None) -> Any:
    # Slow to import and rarely needed.
    import boto3  # noqa: PLC0415

    return boto3.session.Session(region_name=region)


def refusal_kind(message: str) -> RefusalKind:
    """Classify an error code, or a message that contains one."""
    for kind, codes in (
        (RefusalKind.THROTTLED, _THROTTLED),
        (RefusalKind.CAPACITY, _CAPACITY),
        (RefusalKind.QUOTA, _QUOTA),
    ):
        if any(code in message for code in codes):
            return kind
    return RefusalKind.SETUP


def _refused(operation: str, code: str, message: str) -> AwsError:
    kind = refusal_kind(code)
    # AWS has no separate code for a capacity beyond the group's maximum.
    if code == "ValidationError" and "above max" in message:
        kind = RefusalKind.QUOTA
    action = operation.replace("_", " ")
    return AwsError(f"AWS refused to {action}: {code}: {_sentence(message)}", kind=kind, aws_code=code)


def _sentence(text: str) -> str:
    return f"{' '.join(text.split()).rstrip('.')}."
