"""Asking AWS: in threads, with few and bounded tries, and with errors in one sentence that have a kind."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from comfyrelay.autoscaling.providers.base import RefusalKind
from comfyrelay.errors import ConfigurationError, ProviderError
from comfyrelay.extras import require
from comfyrelay.retry import Backoff, Retries

# Whoever is throttled waits 0.2, 0.4, 0.8 and 1.6 s, each up to twice as long, and then says so: the next look of the
# loop tries again.
ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.3
LONGEST_PAUSE_SECONDS = 5.0

# As they begin: services differ in what they put behind. A group that is being changed is asked again likewise.
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
    """`aws_code` is AWS's word for it; empty when AWS did not answer."""

    def __init__(self, detail: str, *, kind: RefusalKind, aws_code: str = "") -> None:
        self.kind = kind
        self.aws_code = aws_code
        super().__init__(detail)


class Aws:
    """The services of one region. A client is made when it is first needed."""

    def __init__(self, region: str | None = None, *, first_pause_seconds: float = FIRST_PAUSE_SECONDS) -> None:
        require("aws")
        # boto3 itself looks only at AWS_DEFAULT_REGION
        self._region = region or os.environ.get("AWS_REGION") or None
        self._first_pause_seconds = first_pause_seconds
        self._session: Any = None
        self._clients: dict[str, Any] = {}
        self._making = asyncio.Lock()

    async def call(self, service: str, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """What AWS answers. `AwsError` when it does not, or says no."""
        retries = Retries(Backoff(first_seconds=self._first_pause_seconds, longest_seconds=LONGEST_PAUSE_SECONDS))
        while True:
            try:
                return await self._call_once(service, operation, arguments)
            except AwsError as error:
                if error.kind is not RefusalKind.THROTTLED or retries.failures + 1 == ATTEMPTS:
                    raise
            await retries.wait()

    async def pages(self, service: str, operation: str, key: str, **arguments: Any) -> list[Any]:
        """What all pages of an answer have under `key`."""
        found: list[Any] = []
        token: dict[str, str] = {}
        while True:
            answer = await self.call(service, operation, **arguments, **token)
            found += answer.get(key, ())
            # an empty one is how some services say that there is no more
            if not answer.get("NextToken"):
                return found
            token = {"NextToken": answer["NextToken"]}

    async def account(self) -> str:
        found: str = (await self.call("sts", "get_caller_identity"))["Account"]
        return found

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
            said = error.response.get("Error", {})
            raise _refused(operation, said.get("Code", ""), said.get("Message", "")) from None
        except BotoCoreError as error:
            raise AwsError(f"AWS could not be asked: {_sentence(str(error))}", kind=RefusalKind.SETUP) from None
        return answer

    async def _client(self, service: str) -> Any:
        # making one reads files for half a second; a session is not thread-safe
        async with self._making:
            if service not in self._clients:
                self._clients[service] = await asyncio.to_thread(self._make, service)
        return self._clients[service]

    def _make(self, service: str) -> Any:
        # imported here: it takes long, and few need it
        from botocore.config import Config  # noqa: PLC0415
        from botocore.exceptions import NoRegionError  # noqa: PLC0415

        if self._session is None:
            self._session = new_session(self._region)
        config = Config(connect_timeout=3, read_timeout=15, retries={"total_max_attempts": 1})
        try:
            return self._session.client(service, config=config)
        except NoRegionError:
            raise ConfigurationError(
                "No region of AWS is known. Write `region` into the fleet's options, or set AWS_REGION."
            ) from None


def new_session(region: str | None) -> Any:
    # imported here: it takes long, and few need it
    import boto3  # noqa: PLC0415

    return boto3.session.Session(region_name=region)


def kind_of(words: str) -> RefusalKind:
    """What a code, or a sentence that has one in it, means for whoever wants machines."""
    for kind, codes in (
        (RefusalKind.THROTTLED, _THROTTLED),
        (RefusalKind.CAPACITY, _CAPACITY),
        (RefusalKind.QUOTA, _QUOTA),
    ):
        if any(code in words for code in codes):
            return kind
    return RefusalKind.SETUP


def _refused(operation: str, code: str, message: str) -> AwsError:
    kind = kind_of(code)
    # AWS has no code of its own for it
    if code == "ValidationError" and "above max" in message:
        kind = RefusalKind.QUOTA
    action = operation.replace("_", " ")
    return AwsError(f"AWS refused to {action}: {code}: {_sentence(message)}", kind=kind, aws_code=code)


def _sentence(text: str) -> str:
    return f"{' '.join(text.split()).rstrip('.')}."
