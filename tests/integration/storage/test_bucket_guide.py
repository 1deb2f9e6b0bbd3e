"""The policy and the CORS rule in docs/howto/s3.md are right."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import httpx
import pytest

from comfyrelay.errors import ComfyRelayError
from comfyrelay.storage.s3 import S3Objects
from tests.support.paths import ROOT
from tests.support.storage import BUCKET, paths_in, read

POLICY, CORS = (
    json.loads(block.replace("your-bucket", BUCKET))
    for block in re.findall(r"```json\n(.*?)```", (ROOT / "docs/howto/s3.md").read_text("utf-8"), re.DOTALL)
)
ORIGIN = "https://relay.example.com"


@contextmanager
def server_with(policy: dict[str, Any]) -> Iterator[S3Objects]:
    """Yield the storage of a server whose user has this policy; the simulated AWS checks it on each call."""
    iam = boto3.client("iam", region_name="us-east-1")
    iam.create_user(UserName="server")
    iam.put_user_policy(UserName="server", PolicyName="storage", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName="server")["AccessKey"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
        patch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
        store = S3Objects(BUCKET, "prefix")
    unchecked_calls = f"{iam.meta.endpoint_url}/moto-api/reset-auth"
    httpx.post(unchecked_calls, content=b"0").raise_for_status()
    try:
        yield store
    finally:
        httpx.post(unchecked_calls, content=b"inf").raise_for_status()
        httpx.post(f"{iam.meta.endpoint_url}/moto-api/reset").raise_for_status()


async def test_policy_allows_what_the_server_does(s3_with_conditions: S3Objects) -> None:
    with server_with(POLICY) as store:
        await store.check()
        await store.put("a.png", b"content")
        assert await read(store, "a.png", start=2, length=3) == b"nte"
        await store.copy("a.png", "b.png")
        assert await paths_in(store) == ["a.png", "b.png"]
        assert not await store.exists("c.png")
        upload = await store.sign_upload("d.png", content_type="image/png", ttl_seconds=60, once=True)
        assert "If-None-Match" in upload.headers
        await store.ensure_cors([ORIGIN])
        await store.remove("a.png")
        assert await paths_in(store) == ["b.png"]


@pytest.mark.parametrize("action", ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"])
async def test_server_needs_each_action(action: str, s3_with_conditions: S3Objects) -> None:
    statements = [
        {**each, "Action": [name for name in each["Action"] if name != action]} for each in POLICY["Statement"]
    ]
    with server_with({**POLICY, "Statement": statements}) as store, pytest.raises(ComfyRelayError):
        await _use(store)


async def _use(store: S3Objects) -> None:
    await store.check()
    await store.put("a.png", b"content")
    await store.get("a.png")
    await store.remove("a.png")


async def test_documented_cors_rule_is_the_rule_that_the_server_sets(s3_with_conditions: S3Objects) -> None:
    await s3_with_conditions.ensure_cors([ORIGIN])
    assert s3_with_conditions._client.get_bucket_cors(Bucket=BUCKET)["CORSRules"] == CORS["CORSRules"]
