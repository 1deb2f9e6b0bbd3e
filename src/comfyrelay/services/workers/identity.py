"""Verify EC2 instance identity documents, which workers can use instead of a shared fleet secret."""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from comfyrelay.errors import ConfigurationError, Unauthorized
from comfyrelay.store.central.workers import workers
from comfyrelay.store.database import Tx

# AWS uses 2048 bits. Shorter keys are insecure.
MIN_KEY_BITS = 2048
# The clock of this server may be this far behind EC2's.
MAX_CLOCK_SKEW = timedelta(minutes=5)
MAX_DOCUMENT_LENGTH = 16 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """An instance that AWS vouches for."""

    instance_id: str
    account_id: str
    region: str
    launched_at: datetime


class Identities:
    def __init__(
        self, *, certificates: Mapping[str, Path], accounts: Mapping[str, Sequence[str]], max_age_seconds: float
    ) -> None:
        """`certificates` are the files with AWS certificates by region. `accounts` are the accounts that may join, by
        stage."""
        self._files = certificates
        self._accounts = accounts
        self._max_age = timedelta(seconds=max_age_seconds)

    @property
    def is_on(self) -> bool:
        return bool(self._files)

    def load(self) -> None:
        """Load the certificates. Raises `ConfigurationError` if one cannot be read."""
        if self.is_on:
            _ = self._certificates

    def read(self, signed: str) -> Identity:
        """Return the document's content, or raise `Unauthorized` if AWS did not sign it."""
        if not self.is_on:
            raise Unauthorized("This server accepts no instance identity documents. Register with the fleet secret.")
        content, signer = _parse_message(signed)
        document = _parse_document(content)
        certificates = self._certificates.get(document["region"])
        if not certificates:
            raise Unauthorized(f"This server has no certificate of AWS for the region {document['region']!r}.")
        if not any(_is_signed_by(certificate, content, signer) for certificate in certificates):
            raise Unauthorized("The instance identity document is not signed by AWS.")
        return Identity(
            instance_id=document["instanceId"],
            account_id=document["accountId"],
            region=document["region"],
            launched_at=_parse_time(document["pendingTime"]),
        )

    def require(self, identity: Identity, *, worker_id: str, stage: str) -> None:
        """Raise `Unauthorized` unless the instance may join this stage under this name."""
        if identity.account_id not in self._accounts.get(stage, ()):
            raise Unauthorized(f"Instances of the account {identity.account_id} may not join the stage {str(stage)!r}.")
        if identity.instance_id != worker_id:
            raise Unauthorized(
                f"The instance identity document belongs to {identity.instance_id}, so the worker must have that name, "
                f"not {worker_id!r}. Do not set WORKER_ID."
            )

    async def claim(self, tx: Tx, identity: Identity, *, key_hash: str | None) -> None:
        """Bind a document to the first worker that presents it. Only that worker, with its key, may use it again."""
        if key_hash is None:
            raise Unauthorized("A registration with an identity document must have a registration_key.")
        now, known = await tx.now(), await workers.identity_key(tx, identity.instance_id)
        if known is not None:
            if known != key_hash:
                raise Unauthorized(
                    "This instance has already registered with another registration_key. If its folder was lost, "
                    "replace the instance."
                )
            return
        if now - identity.launched_at > self._max_age:
            hours = self._max_age.total_seconds() / 3600
            raise Unauthorized(f"The instance was launched more than {hours:g} h ago, so its document is too old.")
        if identity.launched_at - now > MAX_CLOCK_SKEW:
            raise Unauthorized("The instance identity document is from the future. Check the clock of the server.")
        await workers.add_identity(tx, identity.instance_id, account_id=identity.account_id, key_hash=key_hash)

    @cached_property
    def _certificates(self) -> dict[str, list[Any]]:
        # cryptography is an optional dependency.
        from cryptography import x509  # noqa: PLC0415

        found = {}
        for region, path in self._files.items():
            try:
                found[region] = x509.load_pem_x509_certificates(path.read_bytes())
            except (OSError, ValueError) as error:
                raise ConfigurationError(f"The certificate of AWS in {path} cannot be read: {error}") from None
        return found


def _parse_message(signed: str) -> tuple[bytes, Any]:
    """Parse a PKCS #7 message into content and signer, without verifying it."""
    from asn1crypto import cms  # noqa: PLC0415

    try:
        if len(signed) > MAX_DOCUMENT_LENGTH:
            raise ValueError("too long")
        message = cms.ContentInfo.load(base64.b64decode("".join(signed.split()), validate=True))
        if message["content_type"].native != "signed_data":
            raise ValueError("no signed data")
        data = message["content"]
        [signer] = data["signer_infos"]
        content: bytes = data["encap_content_info"]["content"].native
        if not isinstance(content, bytes):
            raise ValueError("no content")
    # The library raises arbitrary exceptions.
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, binascii.Error):
        raise _unreadable() from None
    return content, signer


def _parse_document(content: bytes) -> dict[str, str]:
    names = ("instanceId", "accountId", "region", "pendingTime")
    try:
        found = json.loads(content)
        document = {name: found[name] for name in names}
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _unreadable() from None
    if not all(isinstance(value, str) for value in document.values()):
        raise _unreadable()
    return document


def _is_signed_by(certificate: Any, content: bytes, signer: Any) -> bool:
    """Verify the signature with a configured certificate. Certificates in the message are untrusted."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import padding, rsa  # noqa: PLC0415
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415

    key = certificate.public_key()
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size < MIN_KEY_BITS:
        return False
    try:
        if signer["digest_algorithm"]["algorithm"].native != "sha256":
            return False
        key.verify(signer["signature"].native, _signed_bytes(content, signer), padding.PKCS1v15(), SHA256())
    except (InvalidSignature, ValueError, TypeError, KeyError):
        return False
    return True


def _signed_bytes(content: bytes, signer: Any) -> bytes:
    """Return the signed bytes: the content, or the signed attributes, which include the digest of the content."""
    attributes = signer["signed_attrs"]
    if attributes.native is None:
        return content
    values = {attribute["type"].native: attribute["values"].native for attribute in attributes}
    if values.get("message_digest") != [sha256(content).digest()]:
        raise ValueError("wrong digest")
    encoded: bytes = attributes.untag().dump(force=True)
    return encoded


def _parse_time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise _unreadable() from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _unreadable() -> Unauthorized:
    return Unauthorized(
        "The instance identity document cannot be read. Send the response of EC2 at "
        "/latest/dynamic/instance-identity/rsa2048."
    )
