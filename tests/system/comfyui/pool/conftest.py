"""A simulator."""

from tests.integration.comfyui.pool.conftest import simulator

__all__ = ["simulator"]
