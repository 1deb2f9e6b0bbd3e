"""A worker reports its capabilities to the control plane, and reports them again when they change."""

import asyncio
from typing import Any

from comfyrelay.worker.comfyui.capabilities import Capabilities
from tests.integration.worker.test_servers import fake_comfyui, loader, open_servers
from tests.support.world import PATIENCE_SECONDS


async def test_change_during_the_pause_after_a_check_is_reported() -> None:
    info: dict[str, Any] = {}
    async with fake_comfyui({}, info) as url, open_servers(url) as servers:
        capabilities = Capabilities(servers, {}, min_refresh_seconds=0.2)
        keeping = asyncio.create_task(capabilities.keep())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                for added in ("A", "B"):
                    info[added] = loader()
                    capabilities.refresh_soon()
                    while capabilities.current.get("node_types") != [*info]:  # noqa: ASYNC110  (ComfyUI sends no event)
                        await asyncio.sleep(0.01)
        finally:
            keeping.cancel()
