"""What can be run: workflows, the effects made of them, their files, and presets."""

from dataclasses import dataclass
from typing import Self

from comfyrelay.domain.states import Stage
from comfyrelay.services.catalogue.assets import Assets
from comfyrelay.services.catalogue.effects import Effects
from comfyrelay.services.catalogue.graphs import Graphs
from comfyrelay.services.catalogue.library import Library
from comfyrelay.services.catalogue.own_workflows import OwnWorkflows
from comfyrelay.services.catalogue.presets import Presets
from comfyrelay.services.catalogue.workflows import Workflows
from comfyrelay.services.ground import Ground

__all__ = ["Catalogue"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalogue:
    graphs: Graphs
    assets: Assets
    workflows: Workflows
    effects: Effects
    library: Library
    own_workflows: OwnWorkflows
    presets: Presets

    @classmethod
    def over(cls, ground: Ground) -> Self:
        settings, databases, objects = ground.settings, ground.databases, ground.objects
        graphs = Graphs(objects)
        assets = Assets(objects, max_bytes=settings.max_upload_bytes, ttl_seconds=settings.presigned_ttl_seconds)
        default_fleet = (Stage(settings.stage), settings.default_fleet) if settings.default_fleet else None
        workflows = Workflows(databases, graphs, assets, default_fleet=default_fleet)
        return cls(
            graphs=graphs,
            assets=assets,
            workflows=workflows,
            effects=Effects(databases, assets),
            library=Library(databases),
            own_workflows=OwnWorkflows(databases, workflows),
            presets=Presets(databases),
        )
