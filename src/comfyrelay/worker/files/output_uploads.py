"""Upload the outputs of a job to object storage."""

from collections.abc import Awaitable, Callable
from functools import partial

from comfyrelay.protocol.worker import OutputUrl
from comfyrelay.worker.control import ControlPlane, retry_until_reachable
from comfyrelay.worker.files.outputs import CollectedOutput
from comfyrelay.worker.files.transfers import Transfers
from comfyrelay.worker.lease import Lease


async def upload_outputs(
    lease: Lease,
    collected: CollectedOutput,
    control: ControlPlane,
    transfers: Transfers,
    *,
    refresh: Callable[[], Awaitable[None]],
) -> None:
    """Upload all outputs. `refresh` renews the URLs of the lease. Raises `TransferFailed`, or `LeaseLost` if the lease
    has ended."""
    await transfers.upload(collected.path, lambda: _first_url(lease), refresh=refresh)
    for number, output in enumerate(collected.more, start=2):
        await _upload_more(lease, output, number, control, transfers)


async def _upload_more(
    lease: Lease, output: CollectedOutput, number: int, control: ControlPlane, transfers: Transfers
) -> None:
    get_url = partial(control.output_url, lease, number=number, extension=output.extension)
    url = await retry_until_reachable(get_url)

    async def refresh() -> None:
        nonlocal url
        url = await retry_until_reachable(get_url)

    await transfers.upload(output.path, lambda: url, refresh=refresh)


def _first_url(lease: Lease) -> OutputUrl:
    return OutputUrl(url=lease.urls.output_url, headers=lease.urls.output_headers)
