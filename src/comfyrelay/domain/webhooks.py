"""Telling others of the end of a job: where to, what, signed how, and how often it is tried."""

import base64
import json
import secrets
import socket
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from standardwebhooks.webhooks import Webhook

# How long to wait after each failure; after the last of them it is given up.
WAITS_SECONDS = (5.0, 30.0, 120.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
LONGEST_URL = 2048
# Not for everybody, though the standard library of some Python versions takes them for public: addresses that clouds
# give to their machines' metadata (Oracle's and Azure's), ones that only mean something inside a network, relays that
# are no more, and ranges for documentation (RFC 9637), for segment routing (RFC 9602) and for nobody (RFC 9780).
NOT_PUBLIC = tuple(
    map(
        ip_network,
        (
            *("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32"),
            *("fec0::/10", "64:ff9b:1::/48", "100:0:0:1::/64", "3fff::/20", "5f00::/16"),
        ),
    )
)
INTO_PRIVATE = "The address is not public: webhooks are not sent into private networks."
# A gateway turns the last 32 bits of such an address into an IPv4 address.
TRANSLATED = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedJob:
    """A job that has ended, as far as others are told of it."""

    id: str
    status: str
    batch_id: str | None
    effect_id: int | None
    error_message: str | None
    created_at: datetime
    completed_at: datetime

    def body(self) -> str:
        """No URL that opens anything and no secret: a receiver may log it."""
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
    """A message that tells of nothing: for whoever wants to know whether theirs arrive."""
    return json.dumps({"type": "webhook.test", "timestamp": at.isoformat(), "data": {}}, separators=(",", ":"))


def new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def signed(body: str, *, id_: str, at: datetime, secret: str) -> dict[str, str]:
    """The headers of a message by the Standard Webhooks scheme; `id_` stays the same however often it is sent."""
    return {
        "webhook-id": id_,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(secret).sign(id_, at, body),
    }


def url_problem(url: str, *, allow_private: bool = True) -> str | None:
    """What is wrong with a URL, if anything: its form, and that it leads into a private network where that can be told
    without asking for a name. Where names lead is looked at when something is sent."""
    parts = _parts(url)
    if parts is None:
        return f"This is not a URL, or one of more than {LONGEST_URL} characters."
    if parts.scheme not in ("https", "http"):
        return "This must be an https:// or http:// URL."
    if not parts.hostname or not _is_host(parts.hostname):
        return "This URL names no host."
    if parts.username is not None or parts.password is not None:
        return "This URL must not hold a user name or password."
    if not allow_private and _is_known_to_be_private(parts.hostname):
        return INTO_PRIVATE
    return None


def _parts(url: str) -> SplitResult | None:
    if len(url) > LONGEST_URL or not url.isprintable() or " " in url:
        return None
    try:
        parts = urlsplit(url)
        # only asking tells that a port is out of range
        _ = parts.port
    except ValueError:
        return None
    return parts


def is_public(address: str) -> bool:
    """Whether an address is one that anybody could reach: not private, loopback, link-local, multicast or metadata."""
    ip = ip_address(address)
    if isinstance(ip, IPv6Address) and (inner := _inside(ip)) is not None:
        return is_public(str(inner))
    if any(ip in network for network in NOT_PUBLIC):
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved)


def _inside(ip: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for."""
    if ip in TRANSLATED:
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)


def _is_known_to_be_private(host: str) -> bool:
    name = host.rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return not is_public(name)
    except ValueError:
        pass
    try:
        # `127.1`, `0x7f000001` and `2130706433` are addresses to whoever connects
        return not is_public(socket.inet_ntoa(socket.inet_aton(name)))
    except OSError:
        return False


def _is_host(name: str) -> bool:
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return True
