"""Every test gets a simulator."""

from tests.integration.comfyui.pool.conftest import simulator

__all__ = ["simulator"]
