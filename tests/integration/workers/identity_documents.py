"""Identity documents in AWS's format, signed by a test authority."""

import base64
import json
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from asn1crypto import cms
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs7
from cryptography.x509.oid import NameOID

INSTANCE = "i-0123456789abcdef0"
ACCOUNT = "123456789012"
REGION = "eu-central-1"


class Authority:
    """Create the signer with a key of this many bits."""

    def __init__(self, bits: int = 2048) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=bits)
        name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Amazon Web Services LLC")])
        now = datetime(2026, 1, 1, tzinfo=UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=3650))
            .sign(self.key, hashes.SHA256())
        )

    def write(self, folder: Path) -> Path:
        path = folder / "aws.pem"
        path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        return path

    def sign(
        self,
        document: dict[str, Any] | bytes,
        *,
        digest: hashes.SHA256 | hashes.SHA512 | None = None,
        options: tuple[pkcs7.PKCS7Options, ...] = (),
    ) -> str:
        content = document if isinstance(document, bytes) else json.dumps(document, indent=2).encode()
        message = (
            pkcs7.PKCS7SignatureBuilder()
            .set_data(content)
            .add_signer(self.certificate, self.key, digest or hashes.SHA256())
            .sign(serialization.Encoding.DER, [pkcs7.PKCS7Options.Binary, *options])
        )
        return base64.b64encode(message).decode()


@cache
def aws() -> Authority:
    return Authority()


@cache
def other_authority() -> Authority:
    return Authority()


def document(launched_at: datetime, **changes: Any) -> dict[str, Any]:
    return {
        "accountId": ACCOUNT,
        "architecture": "x86_64",
        "availabilityZone": f"{REGION}a",
        "imageId": "ami-0abcdef1234567890",
        "instanceId": INSTANCE,
        "instanceType": "g5.xlarge",
        "pendingTime": launched_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "region": REGION,
        "version": "2017-09-30",
        **changes,
    }


def encode_like_ec2(signed: str) -> str:
    """Encode with indefinite lengths and in lines, because EC2 does not use DER."""
    data = cms.ContentInfo.load(base64.b64decode(signed))["content"]
    content = data["encap_content_info"]["content"].native
    text = _indefinite(0x24, b"\x04\x82" + len(content).to_bytes(2, "big") + content)
    encapsulated = _indefinite(0x30, cms.ContentType("data").dump() + _indefinite(0xA0, text))
    header = b"".join(data[name].dump() for name in ("version", "digest_algorithms"))
    inner = _indefinite(0x30, header + encapsulated + data["signer_infos"].dump())
    outer = _indefinite(0x30, cms.ContentType("signed_data").dump() + _indefinite(0xA0, inner))
    return base64.encodebytes(outer).decode()


def _indefinite(tag: int, content: bytes) -> bytes:
    return bytes([tag, 0x80]) + content + b"\x00\x00"
