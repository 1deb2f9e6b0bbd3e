"""Send messages through apprise: desktop, webhooks, Slack, ntfy, Telegram, mail and many more.

URLs contain passwords and tokens, so they are never shown or logged. Messages name the service, or the host of a
webhook.
"""

import logging
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from comfyrelay.system.platform import pick

DESKTOP = "desktop://"
_THIS_DESKTOP = pick(windows="windows://", macos="macosx://", others="dbus://")
# The host part of other services may be a token.
_WEBHOOKS = frozenset({"form", "forms", "json", "jsons", "xml", "xmls"})
_MIN_SECRET_LENGTH = 3
_LOGGERS = ("apprise", "urllib3.connectionpool")


def without_secrets(url: str) -> str:
    """Return a URL that is safe to show, such as `tgram://…` or `jsons://example.com/…`."""
    scheme, separator, _ = url.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][A-Za-z0-9.+-]{0,30}", scheme):
        return "(not a URL)"
    if url == DESKTOP:
        return url
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if scheme.lower() not in _WEBHOOKS or not host:
        return f"{scheme}://…"
    return f"{scheme}://{host}{f':{port}' if port else ''}/…"


def why_unusable(url: str) -> str | None:
    """Return what is wrong with a URL, if anything, without sending a message."""
    import apprise

    real = _real(url)
    with _captured_warnings() as warnings:
        return _not_understood(real, _reason(real, warnings)) if apprise.Apprise.instantiate(real) is None else None


def _real(url: str) -> str:
    return _THIS_DESKTOP if url.strip() == DESKTOP else url


def send_message(url: str, title: str, body: str) -> str | None:
    """Send a message. Returns the reason for a failure. Apprise blocks, so this runs in a thread."""
    # Importing apprise is slow, and most processes do not need it.
    import apprise

    real = _real(url)
    with _captured_warnings() as warnings:
        try:
            service = apprise.Apprise.instantiate(real)
            if service is None:
                return _not_understood(real, _reason(real, warnings))
            if service.notify(title=title, body=body):
                return None
        except Exception as error:
            # Each of about a hundred plugins may raise any exception, and the other URLs must still be notified.
            warnings.append(type(error).__name__)
        return _reason(real, warnings) or "The service gave no reason."


def _not_understood(url: str, reason: str) -> str:
    import apprise

    scheme = url.partition("://")[0].strip().lower()
    for service in apprise.Apprise().details(show_requirements=True, show_disabled=True)["schemas"]:
        if scheme not in {*(service["protocols"] or ()), *(service["secure_protocols"] or ())}:
            continue
        if not service["enabled"]:
            needs = service["requirements"]
            wanted = ", ".join([str(needs["details"]), *map(str, needs["packages_required"])]).strip(", ")
            return f"{service['service_name']} cannot be used on this machine. {wanted}".strip()
        forms = ", ".join(str(form).replace("{schema}", scheme) for form in service["details"]["templates"][:3])
        return f"This is not a complete URL of {service['service_name']}. {reason} Use the form {forms}".replace(
            "  ", " "
        )
    return "No service has this kind of URL. The services are listed at https://github.com/caronc/apprise/wiki"


def _reason(url: str, warnings: Sequence[str]) -> str:
    return " ".join(dict.fromkeys(_scrub(warning, url) for warning in warnings)).strip()


def _scrub(text: str, url: str) -> str:
    """Remove URL parts that may be secrets, longest first."""
    shown = without_secrets(url)
    for secret in sorted(_parts(url), key=len, reverse=True):
        if len(secret) >= _MIN_SECRET_LENGTH and secret not in shown:
            text = text.replace(secret, "…")
    return text


def _parts(url: str) -> set[str]:
    rest = url.partition("://")[2]
    place, _, query = rest.partition("?")
    found = {url, rest, *re.split(r"[:/@#]+", place), *(value for _, value in parse_qsl(query))}
    return {form for secret in found for form in (secret, unquote(secret), quote(secret, safe=""))} - {""}


class _LogCapture(logging.Filter):
    """Captures and hides the log lines of apprise in this thread, because they contain parts of URLs."""

    def __init__(self) -> None:
        super().__init__()
        self.warnings: list[str] = []
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self._thread:
            return True
        # Errors are about URLs that apprise does not understand, and our own messages are clearer.
        if record.name == "apprise" and record.levelno == logging.WARNING:
            self.warnings.append(record.getMessage())
        return False


@contextmanager
def _captured_warnings() -> Iterator[list[str]]:
    """Yield the warnings of apprise in this thread."""
    capture = _LogCapture()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(capture)
    try:
        yield capture.warnings
    finally:
        for logger in loggers:
            logger.removeFilter(capture)
