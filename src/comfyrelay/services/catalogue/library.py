"""Effects as users see them: without placeholders and storage paths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comfyrelay.domain.properties import Property, defaults
from comfyrelay.domain.records.catalogue import EffectRecord, WorkflowRecord
from comfyrelay.errors import NotFound
from comfyrelay.protocol.user import Input
from comfyrelay.services.catalogue.assets import Assets
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import Listed, listed
from comfyrelay.store.central import library
from comfyrelay.store.central.library import UsableEffect


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedEffect:
    effect: EffectRecord
    inputs: Sequence[Input]
    workflow_slug: str
    output_mime_type: str
    output_extension: str
    preview_url: str | None


class Library:
    def __init__(self, databases: Databases, assets: Assets) -> None:
        self._databases = databases
        self._assets = assets

    async def effects(self, *, after_id: int = 0, limit: int) -> Listed[OfferedEffect]:
        async with self._databases.central.read() as tx:
            found = await library.offers(tx, after_id=after_id, limit=limit + 1)
        page = listed(found, lambda each: each.effect.id, limit=limit)
        return page.holding([await self._build_offer(item) for item in page.items])

    async def effect(self, *, slug: str | None = None, id_: int | None = None) -> OfferedEffect:
        async with self._databases.central.read() as tx:
            found = await library.offer(tx, slug=slug, id_=id_)
        if found is None:
            raise NotFound("There is no such effect.")
        return await self._build_offer(found)

    async def _build_offer(self, offer: UsableEffect) -> OfferedEffect:
        return OfferedEffect(
            effect=offer.effect,
            inputs=inputs_of(offer.workflow, offer.effect.property_overrides),
            workflow_slug=offer.workflow.slug,
            output_mime_type=offer.workflow.output_mime_type,
            output_extension=offer.workflow.output_extension,
            preview_url=await self._assets.preview_url(offer.effect.preview_path),
        )


def inputs_of(workflow: WorkflowRecord, overrides: Mapping[str, Any]) -> list[Input]:
    properties = [Property.from_json(property_) for property_ in workflow.properties]
    unsent = defaults(properties, overrides)
    return [
        _input(property_, unsent[property_.key])
        for property_ in properties
        if property_.user_configurable or property_.is_primary_input
    ]


def _input(prop: Property, preset: Any) -> Input:
    return Input(
        key=prop.key,
        type=prop.type,
        required=prop.required and (preset is None or prop.is_primary_input),
        # the default of a file is a storage path
        default_value=None if prop.is_asset else preset,
        is_primary_input=prop.is_primary_input,
        choices=list(prop.choices),
        minimum=prop.minimum,
        maximum=prop.maximum,
        step=prop.step,
        is_whole=prop.is_whole,
        role=prop.role,
        scaled_from=prop.scaled_from,
        label=prop.display_name,
        group=prop.group,
    )
