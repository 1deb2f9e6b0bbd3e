"""A working instance is protected from scale-in; moto's server simulates Auto Scaling."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import boto3
import pytest
from aiohttp import ClientSession, web
from moto.server import ThreadedMotoServer
from structlog.testing import capture_logs

from comfyrelay.worker.host.protection import Protection
from comfyrelay.worker.host.scaling_group import ScalingGroup
from tests.support.world import PATIENCE_SECONDS

REGION = "eu-west-1"
GROUP = "gpu"


@pytest.fixture(autouse=True)
def _account(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use dummy credentials, and none of this machine."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def scaling(moto_url: str) -> Any:
    """Create a group with one instance; return the Auto Scaling client."""
    access: Any = {"endpoint_url": moto_url, "aws_access_key_id": "test", "aws_secret_access_key": "test"}
    image = boto3.client("ec2", region_name=REGION, **access).describe_images()["Images"][0]["ImageId"]
    scaling = boto3.client("autoscaling", region_name=REGION, **access)
    scaling.create_launch_configuration(LaunchConfigurationName=GROUP, ImageId=image, InstanceType="g5.xlarge")
    scaling.create_auto_scaling_group(
        AutoScalingGroupName=GROUP,
        LaunchConfigurationName=GROUP,
        MinSize=1,
        MaxSize=1,
        AvailabilityZones=[f"{REGION}a"],
    )
    return scaling


@dataclass
class Aws:
    """Moto behind a gate that counts requests and can refuse them, or hold them until it is opened."""

    url: str
    scaling: Any
    instance_id: str
    wishes: list[bool] = field(default_factory=list)
    granted: int = 0
    refuses: bool = False
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def is_protected(self) -> bool:
        answer = await asyncio.to_thread(self.scaling.describe_auto_scaling_instances, InstanceIds=[self.instance_id])
        found: bool = answer["AutoScalingInstances"][0]["ProtectedFromScaleIn"]
        return found

    async def until(self, condition: Callable[[list[bool]], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), self.news:
            await self.news.wait_for(lambda: condition(self.wishes))


@pytest.fixture
async def aws(moto_url: str, scaling: Any) -> AsyncIterator[Aws]:
    # select by name, because the moto servers of one process share their groups
    [group] = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[GROUP])["AutoScalingGroups"]
    aws = Aws("", scaling, group["Instances"][0]["InstanceId"])
    scaling.set_instance_protection(
        InstanceIds=[aws.instance_id], AutoScalingGroupName=GROUP, ProtectedFromScaleIn=False
    )
    aws.opened.set()

    async def forward(request: web.Request) -> web.Response:
        body = await request.read()
        async with aws.news:
            aws.wishes.append(parse_qs(body.decode())["ProtectedFromScaleIn"] == ["true"])
            aws.news.notify_all()
        await aws.opened.wait()
        if aws.refuses:
            return web.Response(status=503, text="busy")
        headers = {name: request.headers[name] for name in ("Authorization", "Content-Type", "X-Amz-Date")}
        async with ClientSession() as http, http.post(moto_url, data=body, headers=headers) as answer:
            content = await answer.read()
        async with aws.news:
            aws.granted += 1
            aws.news.notify_all()
        return web.Response(status=answer.status, body=content)

    app = web.Application()
    app.router.add_post("/", forward)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    aws.url = f"http://{host}:{port}"
    yield aws
    await runner.cleanup()


@asynccontextmanager
async def open_protection(aws: Aws, *, off_after_seconds: float = 0.0, **more: Any) -> AsyncIterator[Protection]:
    group = ScalingGroup(
        **{"name": GROUP, "instance_id": aws.instance_id, "region": REGION, "endpoint_url": aws.url, **more}
    )
    protection = Protection(group, off_after_seconds=off_after_seconds, first_pause_seconds=0.001)
    protection.start()
    try:
        yield protection
    finally:
        await protection.close()


async def test_instance_is_protected_only_while_it_works(aws: Aws) -> None:
    async with open_protection(aws) as protection:
        protection.want(True)
        await aws.until(lambda wishes: wishes == [True])
    assert await aws.is_protected()
    async with open_protection(aws) as protection:
        protection.want(False)
    # even if closed at once, it turns off the protection of an earlier process
    assert aws.wishes == [True, False]
    assert not await aws.is_protected()


async def test_unchanged_protection_makes_no_request(aws: Aws) -> None:
    async with open_protection(aws) as protection:
        protection.want(True)
        await aws.until(lambda wishes: wishes == [True])
        protection.want(True)
    assert aws.wishes == [True]
    async with open_protection(aws):
        pass
    assert aws.wishes == [True]


async def test_last_protection_request_wins(aws: Aws) -> None:
    aws.opened.clear()
    async with open_protection(aws) as protection:
        protection.want(True)
        await aws.until(lambda wishes: wishes == [True])
        for protected in (False, True, False, True, False):
            protection.want(protected)
        aws.opened.set()
        await aws.until(lambda wishes: wishes == [True, False])
    assert aws.wishes == [True, False]
    assert not await aws.is_protected()


async def test_protection_stays_on_between_jobs_and_ends_at_once_on_close(aws: Aws) -> None:
    async with open_protection(aws, off_after_seconds=3600) as protection:
        protection.want(True)
        await aws.until(lambda _: aws.granted == 1)
        for protected in (False, True, False):
            assert await aws.is_protected()
            protection.want(protected)
        assert aws.wishes == [True]
    assert aws.wishes == [True, False]
    assert not await aws.is_protected()


async def test_refused_protection_is_retried_and_logged_once(aws: Aws) -> None:
    aws.refuses = True
    with capture_logs() as logs:
        async with open_protection(aws) as protection:
            protection.want(True)
            await aws.until(lambda wishes: len(wishes) >= 3)
            aws.refuses = False
            seen = len(aws.wishes)
            await aws.until(lambda wishes: len(wishes) > seen)
    assert await aws.is_protected()
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["worker.protection_failed"]


async def test_failed_request_is_followed_by_an_explicit_reset(aws: Aws) -> None:
    """The request may have succeeded even though its answer was lost."""
    async with open_protection(aws) as protection:
        protection.want(False)
        await aws.until(lambda wishes: wishes == [False])
        aws.refuses = True
        protection.want(True)
        await aws.until(lambda wishes: wishes[1:2] == [True])
        aws.refuses = False
        protection.want(False)
        await aws.until(lambda wishes: wishes[-1] is False and len(wishes) > 2)
    assert not await aws.is_protected()


@pytest.mark.parametrize(
    "wrong", [{"name": "no such group"}, {"region": "no region"}, {"endpoint_url": "http://127.0.0.1:1"}]
)
async def test_aws_errors_do_not_block_deregistering(aws: Aws, wrong: dict[str, Any]) -> None:
    with capture_logs() as logs:
        async with open_protection(aws, **wrong) as protection:
            protection.want(True)
    assert "worker.protection_failed" in [entry["event"] for entry in logs]


async def test_hanging_aws_call_does_not_delay_deregistering(aws: Aws) -> None:
    aws.opened.clear()
    async with open_protection(aws) as protection:
        protection.want(True)
        await aws.until(bool)
        began = time.monotonic()
    assert time.monotonic() - began < 60
    aws.opened.set()


async def test_unstarted_protection_can_be_closed(aws: Aws) -> None:
    protection = Protection(ScalingGroup(GROUP, instance_id="i-0", region=REGION))
    protection.want(True)
    await protection.close()
    assert aws.wishes == []
