"""How many machines there should be: what is seen, what is done about it, and what comes of it."""

from comfyrelay.services.ground import Ground
from comfyrelay.services.scaling.figures import FiguresOfFleets
from comfyrelay.services.scaling.usage import Usage

__all__ = ["Scaling"]


class Scaling:
    def __init__(self, ground: Ground) -> None:
        self.figures = FiguresOfFleets(ground.databases)
        self.usage = Usage(ground.databases)
