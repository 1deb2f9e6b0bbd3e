"""Guests: browsers that opened a desk with its password. They have the owner's account, but not all of its rights."""

from fastapi import Request
from starlette.types import Scope

from comfyrelay.errors import Forbidden

_KEY = "comfyrelay.is_guest"
GUEST_ADVICE = (
    "With the password of a desk you can only watch, add and manage jobs. Everything else, such as tokens, webhooks, "
    "workflows and settings, needs the owner: on the desk's machine, run `comfyrelay open` and use the page there."
)


def mark_guest(scope: Scope) -> None:
    scope[_KEY] = True


def is_guest(request: Request) -> bool:
    return request.scope.get(_KEY) is True


def refuse_urls_of_guest(request: Request, *urls: object) -> None:
    """Raise `Forbidden` if a guest sets a URL to call, because the calls would outlive the password."""
    if is_guest(request) and any(urls):
        raise Forbidden(f"A guest cannot set notification or webhook URLs. {GUEST_ADVICE}")
