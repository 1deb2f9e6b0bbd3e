"""Find the address where a browser can open the ComfyUI that ran a job."""

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from fastapi import Request

from comfyrelay.desk.batches.run_files import COMFYUI
from comfyrelay.domain.queue.settlement import Attempt
from comfyrelay.http_client import is_loopback


def is_on_this_machine(request: Request) -> bool:
    """Whether the browser runs on the desk's machine. Requests through a proxy on this machine have another host
    name."""
    client = request.client.host if request.client else ""
    return is_loopback(client) and is_loopback(request.url.hostname or "")


def comfyui_link(
    attempts: Iterable[Attempt],
    *,
    urls: Sequence[str],
    public_urls: Sequence[str],
    unreachable: Sequence[str],
    is_managed: bool,
    is_local: bool,
) -> str | None:
    """Return the address of the ComfyUI of the last attempt, if this browser can reach it.

    `urls` are the ComfyUI servers in use, `public_urls` their addresses for other machines in the same order, and
    `unreachable` the reasons why some of them do not answer. A loopback address works only on the desk's machine. A
    ComfyUI that the desk manages has a new address after each start.
    """
    ran_on: list[str] = [url for attempt in attempts if (url := (attempt.about or {}).get(COMFYUI))]
    url = ran_on[-1] if ran_on else None
    if url is not None and url not in urls and is_managed:
        url = next(iter(urls), None)
    if url is None or url not in urls or any(url in reason for reason in unreachable):
        return None
    number = urls.index(url)
    if is_local or not is_loopback(urlsplit(url).hostname or ""):
        return url
    return public_urls[number] if number < len(public_urls) else None
