"""EC2 instances can register with their identity document instead of the fleet's secret."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import pkcs7

from comfyrelay.errors import ConfigurationError
from comfyrelay.services.workers.identity import Identities
from comfyrelay.worker.control import ControlPlane
from comfyrelay.worker.host.imds import Imds
from comfyrelay.worker.registration import Registrar
from comfyrelay.worker.settings import WorkerSettings
from comfyrelay.worker.state import StateFolder
from tests.integration.workers.identity_documents import (
    ACCOUNT,
    INSTANCE,
    REGION,
    Authority,
    aws,
    document,
    encode_like_ec2,
    other_authority,
)
from tests.support.api import FLEET_SECRET, Api, open_api, problem_of
from tests.support.ec2_metadata import IDENTITY, Metadata
from tests.support.world import PostgresBackend, SqliteBackend

KEY = "the-key-that-the-worker-keeps"


@asynccontextmanager
async def open_identity_api(
    backend: SqliteBackend | PostgresBackend, folder: Path, **settings: Any
) -> AsyncIterator[Api]:
    values = {
        "aws_identity_certificates": {REGION: aws().write(folder)},
        "aws_identity_accounts": {"production": [ACCOUNT]},
        "rate_limit_per_minute": 1000,
        **settings,
    }
    async with open_api(backend, folder, **values) as api:
        await api.effect()
        yield api


@pytest.fixture
async def api(backend: SqliteBackend | PostgresBackend, tmp_path: Path) -> AsyncIterator[Api]:
    async with open_identity_api(backend, tmp_path) as api:
        yield api


@pytest.fixture
async def sqlite_api(sqlite_backend: SqliteBackend, tmp_path: Path) -> AsyncIterator[Api]:
    async with open_identity_api(sqlite_backend, tmp_path) as api:
        yield api


def recent_document(api: Api, **changes: Any) -> dict[str, Any]:
    return document(api.clock.now - timedelta(minutes=3), **changes)


async def register(api: Api, signed: str, **changes: Any) -> httpx.Response:
    headers = {"X-Instance-Identity": "".join(signed.split())}
    body = {"worker_id": INSTANCE, "fleet_slug": "home-clip", "registration_key": KEY, **changes}
    return await api.anonymous.call("POST", "/api/worker/register", body, headers=headers)


async def register_refused(api: Api, signed: str, **changes: Any) -> str:
    return str(problem_of(await register(api, signed, **changes), 401)["detail"])


@pytest.mark.parametrize("encoding", ["DER", "BER of EC2", "without attributes"])
async def test_instance_with_a_signed_document_is_accepted(sqlite_api: Api, encoding: str) -> None:
    options = (pkcs7.PKCS7Options.NoAttributes,) if encoding == "without attributes" else ()
    signed = aws().sign(recent_document(sqlite_api), options=options)
    if encoding == "BER of EC2":
        signed = encode_like_ec2(signed)
    answer = await register(sqlite_api, signed)
    assert answer.status_code == 201
    token = answer.json()["data"]["token"]
    poll = await sqlite_api.anonymous.call(
        "POST", "/api/worker/poll", {"worker_id": INSTANCE}, headers={"Authorization": f"Bearer {token}"}
    )
    assert poll.status_code == 200


async def test_only_the_aws_signature_is_accepted(sqlite_api: Api) -> None:
    refusal = "The instance identity document is not signed by AWS."
    # a certificate inside the message is not trusted
    assert await register_refused(sqlite_api, other_authority().sign(recent_document(sqlite_api))) == refusal
    assert (
        await register_refused(sqlite_api, aws().sign(recent_document(sqlite_api), digest=hashes.SHA512())) == refusal
    )


@pytest.mark.parametrize("options", [(), (pkcs7.PKCS7Options.NoAttributes,)])
async def test_altered_document_is_refused(sqlite_api: Api, options: Any) -> None:
    signed = base64.b64decode(aws().sign(recent_document(sqlite_api), options=options))
    forged = base64.b64encode(signed.replace(INSTANCE.encode(), b"i-0123456789abcdef1")).decode()
    answer = await register_refused(sqlite_api, forged, worker_id="i-0123456789abcdef1")
    assert answer == "The instance identity document is not signed by AWS."


async def test_short_key_is_not_trusted(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    weak = Authority(1024)
    async with open_identity_api(
        sqlite_backend, tmp_path, aws_identity_certificates={REGION: weak.write(tmp_path)}
    ) as api:
        assert (
            await register_refused(api, weak.sign(recent_document(api)))
            == "The instance identity document is not signed by AWS."
        )


async def test_document_of_another_instance_is_refused(sqlite_api: Api) -> None:
    assert (
        await register_refused(sqlite_api, aws().sign(recent_document(sqlite_api)), worker_id="i-0feedfeedfeedfeed")
    ).startswith(f"The instance identity document belongs to {INSTANCE}")


async def test_other_accounts_stages_and_regions_are_refused(sqlite_api: Api) -> None:
    other = aws().sign(recent_document(sqlite_api, accountId="999999999999"))
    assert (
        await register_refused(sqlite_api, other)
        == "Instances of the account 999999999999 may not join the stage 'production'."
    )
    own = aws().sign(recent_document(sqlite_api))
    assert await register_refused(sqlite_api, own, stage="staging") == (
        f"Instances of the account {ACCOUNT} may not join the stage 'staging'."
    )
    other_region = aws().sign(recent_document(sqlite_api, region="us-east-1"))
    assert (
        await register_refused(sqlite_api, other_region)
        == "This server has no certificate of AWS for the region 'us-east-1'."
    )


async def test_expired_document_is_refused(api: Api) -> None:
    old = document(api.clock.now - timedelta(seconds=3601))
    assert await register_refused(api, aws().sign(old)) == (
        "The instance was launched more than 1 h ago, so its document is too old."
    )
    ahead = document(api.clock.now + timedelta(minutes=6))
    assert (await register_refused(api, aws().sign(ahead))).startswith(
        "The instance identity document is from the future"
    )


async def test_document_is_accepted_only_with_the_key_of_its_first_registration(api: Api) -> None:
    signed = aws().sign(recent_document(api))
    first = await register(api, signed)
    assert first.status_code == 201
    another = "a-key-of-another-sender"
    assert (await register_refused(api, signed, registration_key=another)).startswith(
        "This instance has already registered"
    )
    # not even after the worker has deregistered
    token = {"Authorization": f"Bearer {first.json()['data']['token']}"}
    answer = await api.anonymous.call("POST", "/api/worker/deregister", {"reason": "shutdown"}, headers=token)
    assert answer.status_code == 200
    assert (await register_refused(api, signed, registration_key=another)).startswith(
        "This instance has already registered"
    )
    assert await register_refused(api, signed, registration_key=None) == (
        "A registration with an identity document must have a registration_key."
    )


async def test_registered_worker_may_return_with_its_key_at_any_instance_age(api: Api) -> None:
    signed = aws().sign(recent_document(api))
    assert (await register(api, signed)).status_code == 201
    await api.clock.set(api.clock.now + timedelta(days=3))
    assert (await register(api, signed)).status_code == 201


async def test_refused_registration_does_not_bind_the_document(sqlite_api: Api) -> None:
    signed = aws().sign(recent_document(sqlite_api))
    assert (await register(sqlite_api, signed, fleet_slug="nowhere", registration_key="k" * 16)).status_code == 404
    assert (await register(sqlite_api, signed)).status_code == 201


@pytest.mark.parametrize("header", ["", "no base64 at all!", "AAAA", "x" * 20_000])
async def test_invalid_document_is_refused_with_a_reason(sqlite_api: Api, header: str) -> None:
    detail = await register_refused(sqlite_api, header)
    assert detail.startswith(("The instance identity document cannot be read", "The fleet secret is wrong"))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"instanceId": 7}', b"\xff"])
async def test_signed_document_without_content_is_refused(sqlite_api: Api, content: bytes) -> None:
    assert (await register_refused(sqlite_api, aws().sign(content))).startswith(
        "The instance identity document cannot be read"
    )


async def test_wrong_secret_is_refused_despite_a_valid_document(sqlite_api: Api) -> None:
    headers = {"X-Instance-Identity": aws().sign(recent_document(sqlite_api)), "X-Fleet-Secret": "wrong"}
    body = {"worker_id": INSTANCE, "fleet_slug": "home-clip", "registration_key": KEY}
    problem_of(await sqlite_api.anonymous.call("POST", "/api/worker/register", body, headers=headers), 401)


async def test_only_the_secret_is_accepted_without_certificates(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    async with open_identity_api(sqlite_backend, tmp_path, aws_identity_certificates={}) as api:
        detail = await register_refused(api, aws().sign(recent_document(api)))
        assert detail == "This server accepts no instance identity documents. Register with the fleet secret."
        await api.worker()


def test_unreadable_certificate_is_reported_at_startup(tmp_path: Path) -> None:
    (tmp_path / "wrong.pem").write_text("no certificate")
    for name in ("wrong.pem", "missing.pem"):
        identities = Identities(certificates={REGION: tmp_path / name}, accounts={}, max_age_seconds=60)
        with pytest.raises(ConfigurationError, match=f"The certificate of AWS in .*{name} cannot be read"):
            identities.load()


async def test_secret_is_accepted_in_addition_to_documents(sqlite_api: Api) -> None:
    await sqlite_api.worker("gpu-1")
    assert [item.worker.worker_id for item in (await sqlite_api.engine.workers.views.workers(limit=9)).items] == [
        "gpu-1"
    ]


class TestWorker:
    """The worker sends its document, read from a simulator of EC2's metadata."""

    @asynccontextmanager
    async def make_registrar(
        self, api: Api, folder: Path, metadata: Metadata, **settings: Any
    ) -> AsyncIterator[Registrar]:
        control = ControlPlane("http://relay.test", worker_id=INSTANCE)
        await control._http.aclose()
        control._http = api.anonymous.http
        imds = Imds(metadata.url)
        worker_settings = WorkerSettings(fleet_slug="home-clip", **settings)
        yield Registrar(worker_settings, control, StateFolder(folder), imds=imds)
        await imds.close()

    async def test_worker_without_a_secret_sends_the_document(self, sqlite_api: Api, tmp_path: Path) -> None:
        async with Metadata(instance_id=INSTANCE) as metadata:
            metadata.arm(IDENTITY, encode_like_ec2(aws().sign(recent_document(sqlite_api))))
            async with self.make_registrar(sqlite_api, tmp_path, metadata, fleet_identity="aws") as registrar:
                assert await registrar.register({"max_concurrency": 1})
        assert [item.worker.worker_id for item in (await sqlite_api.engine.workers.views.workers(limit=9)).items] == [
            INSTANCE
        ]

    async def test_missing_document_error_says_what_to_do(self, sqlite_api: Api, tmp_path: Path) -> None:
        async with (
            Metadata(instance_id=INSTANCE) as metadata,
            self.make_registrar(sqlite_api, tmp_path, metadata, fleet_identity="aws") as registrar,
        ):
            with pytest.raises(ConfigurationError, match="this machine has no EC2 identity document"):
                await registrar.register({})

    async def test_refused_worker_shows_the_message_of_the_server(self, sqlite_api: Api, tmp_path: Path) -> None:
        async with Metadata(instance_id=INSTANCE) as metadata:
            metadata.arm(IDENTITY, other_authority().sign(recent_document(sqlite_api)))
            async with self.make_registrar(sqlite_api, tmp_path, metadata, fleet_identity="aws") as registrar:
                with pytest.raises(ConfigurationError, match="is not signed by AWS"):
                    await registrar.register({})

    async def test_secret_is_preferred_to_the_document(self, sqlite_api: Api, tmp_path: Path) -> None:
        async with Metadata(instance_id=INSTANCE) as metadata:
            options = {"fleet_identity": "aws", "fleet_secret": FLEET_SECRET}
            async with self.make_registrar(sqlite_api, tmp_path, metadata, **options) as registrar:
                assert await registrar.register({"max_concurrency": 1})
            assert metadata.asked[IDENTITY] == 0

    def test_worker_requires_a_secret_or_an_identity_document(self, tmp_path: Path) -> None:
        registrar = Registrar(
            WorkerSettings(fleet_slug="x"), ControlPlane("http://relay.test", worker_id="w"), StateFolder(tmp_path)
        )
        with pytest.raises(ConfigurationError, match="FLEET_SECRET is not set"):
            registrar.require_settings()
