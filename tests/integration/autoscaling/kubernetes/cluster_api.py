"""A fake of the cluster API over TLS: it lists and patches pods, and checks the service account's token."""

import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from comfyrelay.autoscaling.kubernetes.pods import DELETION_COST, FLEET_LABEL, STAGE_LABEL

NAMESPACE = "gpu"
ADDRESS = "127.0.0.1"


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.account = folder / "serviceaccount"
        self.account.mkdir()
        (self.account / "namespace").write_text(f"{NAMESPACE}\n")
        self.token = "first"
        self.pods: dict[str, dict[str, Any]] = {}
        self.patches: list[tuple[str, str]] = []
        self.is_forbidden = False

    @property
    def token(self) -> str:
        return self._token

    @token.setter
    def token(self, token: str) -> None:
        self._token = token
        (self.account / "token").write_text(token)

    def add(self, name: str, *, fleet: str, stage: str = "production", age_seconds: float = 0.0) -> dict[str, Any]:
        created = datetime.now(UTC) - timedelta(seconds=age_seconds)
        metadata = {
            "name": name,
            "labels": {FLEET_LABEL: fleet, STAGE_LABEL: stage},
            "creationTimestamp": f"{created:%Y-%m-%dT%H:%M:%SZ}",
        }
        self.pods[name] = {"metadata": metadata}
        return metadata

    def cost(self, name: str) -> int:
        return int(self.pods[name]["metadata"]["annotations"][DELETION_COST])

    async def _list(self, request: web.Request) -> web.Response:
        self._check(request)
        labels = dict(pair.split("=") for pair in request.query["labelSelector"].split(","))
        found = [pod for pod in self.pods.values() if labels.items() <= pod["metadata"]["labels"].items()]
        return web.json_response({"kind": "PodList", "items": found})

    async def _patch(self, request: web.Request) -> web.Response:
        self._check(request)
        if request.content_type != "application/merge-patch+json":
            raise web.HTTPUnsupportedMediaType
        pod = self.pods.get(request.match_info["name"])
        if pod is None:
            raise web.HTTPNotFound
        annotations = (await request.json())["metadata"]["annotations"]
        pod["metadata"].setdefault("annotations", {}).update(annotations)
        self.patches.append((pod["metadata"]["name"], annotations[DELETION_COST]))
        return web.json_response(pod)

    def _check(self, request: web.Request) -> None:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            raise web.HTTPUnauthorized
        if self.is_forbidden or request.match_info["namespace"] != NAMESPACE:
            raise web.HTTPForbidden

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[int]:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/{namespace}/pods", self._list)
        app.router.add_patch("/api/v1/namespaces/{namespace}/pods/{name}", self._patch)
        server = TestServer(app, scheme="https", host=ADDRESS)
        await server.start_server(ssl=_create_tls_context(self.account))
        try:
            assert server.port is not None
            yield server.port
        finally:
            await server.close()


def _create_tls_context(account: Path) -> ssl.SSLContext:
    """Create a CA and store its certificate in the service account folder."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kubernetes")])
    now = datetime.now(UTC)
    certificate_data = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(ADDRESS))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate = account / "ca.crt"
    certificate.write_bytes(certificate_data.public_bytes(serialization.Encoding.PEM))
    private = account.parent / "private.pem"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, private)
    return context
