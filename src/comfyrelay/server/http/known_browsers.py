"""Recognize a browser that has signed in to an account before, by a signed cookie.

While others guess the password of an account, its users still sign in with their own browsers. The signature includes
the password's hash, so a password reset ends all cookies of the account.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta

from comfyrelay.services.accounts.sign_in import Credentials

COOKIE_PREFIX = "comfyrelay_browser_"
LIFETIME = timedelta(days=365)
_PURPOSE = "known browser"


class KnownBrowsers:
    def __init__(self, signing_secrets: Sequence[str]) -> None:
        """The first secret signs cookies; all secrets verify them."""
        self._secrets = signing_secrets

    def cookie(self, account: Credentials) -> tuple[str, str]:
        """Return the name and the value of a cookie for this account."""
        browser, issued_at = secrets.token_urlsafe(12), int(account.read_at.timestamp())
        signature = _sign(account, browser, issued_at, secret=self._secrets[0])
        return _name(account), f"{browser}.{issued_at}.{signature}"

    def is_known(self, account: Credentials, cookies: Mapping[str, str]) -> bool:
        browser, _, rest = cookies.get(_name(account), "").partition(".")
        issued_at, _, signature = rest.partition(".")
        if not (issued_at.isascii() and issued_at.isdecimal() and len(issued_at) <= 12 and signature.isascii()):
            return False
        age_seconds = account.read_at.timestamp() - int(issued_at)
        signatures = [_sign(account, browser, int(issued_at), secret=secret) for secret in self._secrets]
        is_signed = any(hmac.compare_digest(signature, valid) for valid in signatures)
        return is_signed and age_seconds < LIFETIME.total_seconds()


def _name(account: Credentials) -> str:
    # Each account has a cookie, because several people may use one browser.
    return f"{COOKIE_PREFIX}{hashlib.sha256(account.user.id.encode()).hexdigest()[:12]}"


def _sign(account: Credentials, browser: str, issued_at: int, *, secret: str) -> str:
    signed = "\0".join([_PURPOSE, account.user.id, account.password_hash or "", browser, str(issued_at)])
    return hmac.new(secret.encode(), signed.encode(), hashlib.sha256).hexdigest()
