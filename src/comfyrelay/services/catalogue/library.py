"""Effects for users, without placeholders and storage paths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comfyrelay.domain.prices.effects import needs_input
from comfyrelay.domain.properties import Property, defaults
from comfyrelay.domain.records.catalogue import EffectRecord, WorkflowRecord
from comfyrelay.errors import NotFound
from comfyrelay.protocol.user import Input
from comfyrelay.services.catalogue.assets import Assets
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import ResultPage, cut_page
from comfyrelay.store.central import library
from comfyrelay.store.central.library import UsableEffect


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedEffect:
    effect: EffectRecord
    inputs: Sequence[Input]
    price_needs_input: bool
    workflow_slug: str
    output_mime_type: str
    output_extension: str
    preview_url: str | None
    before_url: str | None


class Library:
    def __init__(self, databases: Databases, assets: Assets) -> None:
        self._databases = databases
        self._assets = assets

    async def effects(self, *, after_id: int = 0, limit: int) -> ResultPage[OfferedEffect]:
        async with self._databases.central.read() as tx:
            found, has_more = await library.usable_effects(tx, after_id=after_id, limit=limit)
        page = cut_page(found, has_more=has_more, key=lambda item: item.effect.id)
        return page.with_items([await self._build_offer(item) for item in page.items])

    async def effect(self, *, slug: str | None = None, id_: int | None = None) -> OfferedEffect:
        async with self._databases.central.read() as tx:
            found = await library.usable_effect(tx, slug=slug, id_=id_)
        if found is None:
            raise NotFound("There is no such effect.")
        return await self._build_offer(found)

    async def _build_offer(self, offer: UsableEffect) -> OfferedEffect:
        return OfferedEffect(
            effect=offer.effect,
            inputs=inputs_of(offer.workflow, offer.effect.property_overrides),
            price_needs_input=needs_input(offer.effect, offer.workflow.parsed_properties),
            workflow_slug=offer.workflow.slug,
            output_mime_type=offer.workflow.output_mime_type,
            output_extension=offer.workflow.output_extension,
            preview_url=await self._assets.example_url(offer.effect.preview_path),
            before_url=await self._assets.example_url(offer.effect.before_path),
        )


def inputs_of(workflow: WorkflowRecord, overrides: Mapping[str, Any]) -> list[Input]:
    """Return the inputs that users may set."""
    properties = workflow.parsed_properties
    unsent = defaults(properties, overrides)
    return [_input(prop, unsent[prop.key]) for prop in properties if prop.user_configurable or prop.is_primary_input]


def draws_seed(workflow: WorkflowRecord) -> bool:
    """Return whether each job gets a random seed that users cannot set."""
    hidden = (prop for prop in workflow.parsed_properties if not prop.user_configurable)
    return any(prop.is_seed and prop.default_value is None for prop in hidden)


def _input(prop: Property, default: Any) -> Input:
    return Input.of(
        prop,
        required=prop.required and (default is None or prop.is_primary_input),
        # The default of a file is a storage path.
        default_value=None if prop.is_asset else default,
        choices=list(prop.choices),
        label=prop.display_name,
    )
