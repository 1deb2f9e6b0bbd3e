"""Webhooks for finished jobs: message, signature, retry delays and allowed URLs."""

import base64
import json
import secrets
import socket
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from standardwebhooks.webhooks import Webhook

# Delays after each failure. After the last one, the delivery is abandoned.
RETRY_DELAYS_SECONDS = (5.0, 30.0, 120.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
MAX_URL_LENGTH = 2048
# Not public, although some Python versions report them as global: metadata services (Oracle, Azure), site-local
# addresses, retired relays, documentation (RFC 9637), segment routing (RFC 9602) and dummy prefixes (RFC 9780).
NOT_PUBLIC = tuple(
    map(
        ip_network,
        (
            *("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32"),
            *("fec0::/10", "64:ff9b:1::/48", "100:0:0:1::/64", "3fff::/20", "5f00::/16"),
        ),
    )
)
NOT_PUBLIC_TEXT = "The address is not public: webhooks are not sent to private networks."
# NAT64 gateways map the last 32 bits of such an address to an IPv4 address.
NAT64 = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedJob:
    """The fields of a finished job that webhooks contain."""

    id: str
    status: str
    batch_id: str | None
    effect_id: int | None
    error_message: str | None
    created_at: datetime
    completed_at: datetime

    def body(self) -> str:
        """Return the message, without signed URLs or secrets, because receivers may log it."""
        event = {
            "type": f"job.{self.status}",
            "timestamp": self.completed_at.isoformat(),
            "data": {
                "job_id": self.id,
                "status": self.status,
                "batch_id": self.batch_id,
                "error": self.error_message,
                "effect_id": self.effect_id,
                "created_at": self.created_at.isoformat(),
                "completed_at": self.completed_at.isoformat(),
            },
        }
        return json.dumps(event, separators=(",", ":"))


def test_body(at: datetime) -> str:
    """Return a message without a job, to test an endpoint."""
    return json.dumps({"type": "webhook.test", "timestamp": at.isoformat(), "data": {}}, separators=(",", ":"))


def new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def sign_headers(body: str, *, id_: str, at: datetime, secret: str) -> dict[str, str]:
    """Return the headers of the Standard Webhooks scheme. `id_` is the same for all attempts."""
    return {
        "webhook-id": id_,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(secret).sign(id_, at, body),
    }


def url_problem(url: str, *, allow_private: bool = True) -> str | None:
    """Return why a URL is refused, or `None`.

    Host names are not resolved here; their addresses are checked when a message is sent.
    """
    parts = _parts(url)
    if parts is None:
        return f"This must be a URL of at most {MAX_URL_LENGTH} characters."
    if parts.scheme not in ("https", "http"):
        return "This must be an https:// or http:// URL."
    if not parts.hostname or not _is_host(parts.hostname):
        return "This URL has no valid host."
    if parts.username is not None or parts.password is not None:
        return "This URL must not contain a user name or password."
    if not allow_private and _is_private_literal(parts.hostname):
        return NOT_PUBLIC_TEXT
    return None


def _parts(url: str) -> SplitResult | None:
    if len(url) > MAX_URL_LENGTH or not url.isprintable() or " " in url:
        return None
    try:
        parts = urlsplit(url)
        # Reading the port raises if it is out of range.
        _ = parts.port
    except ValueError:
        return None
    return parts


def is_public(address: str) -> bool:
    """Whether an address is public: not private, loopback, link-local, multicast or a metadata service."""
    ip = ip_address(address)
    if isinstance(ip, IPv6Address) and (embedded := _embedded_ipv4(ip)) is not None:
        return is_public(str(embedded))
    if any(ip in network for network in NOT_PUBLIC):
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved)


def _embedded_ipv4(ip: IPv6Address) -> IPv4Address | None:
    if ip in NAT64:
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)


def _is_private_literal(host: str) -> bool:
    name = host.rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return not is_public(name)
    except ValueError:
        pass
    try:
        # `127.1`, `0x7f000001` and `2130706433` also connect to 127.0.0.1.
        return not is_public(socket.inet_ntoa(socket.inet_aton(name)))
    except OSError:
        return False


def _is_host(name: str) -> bool:
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return True
