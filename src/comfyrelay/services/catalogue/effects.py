"""Effects: workflows with property overrides and a price, which users can run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from comfyrelay.domain.prices.effects import check_offer
from comfyrelay.domain.prices.limits import DEFAULT_RUN_SECONDS
from comfyrelay.domain.properties import check_overrides
from comfyrelay.domain.records.catalogue import EffectRecord, WorkflowRecord
from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.services.catalogue.assets import Assets, SavedAssets
from comfyrelay.services.catalogue.checks import prefix_errors
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import ResultPage
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import catalogue
from comfyrelay.store.database import Tx

_PRICE = ("credits_cost", "price_formula", "max_credits_cost")
_OFFER = (*_PRICE, "is_active")
_EXAMPLES = ("preview_path", "before_path")


@dataclass(frozen=True, kw_only=True, slots=True)
class EffectView:
    effect: EffectRecord
    workflow_slug: str
    preview_url: str | None = None
    before_url: str | None = None


class Effects:
    def __init__(self, databases: Databases, assets: Assets) -> None:
        self._databases = databases
        self._assets = assets

    async def create(
        self,
        *,
        slug: str,
        workflow_slug: str,
        credits_cost: int,
        property_overrides: Mapping[str, Any] | None = None,
        name: str | None = None,
        is_active: bool = True,
        max_wait_seconds: int | None = None,
        max_run_seconds: int = DEFAULT_RUN_SECONDS,
        price_formula: str | None = None,
        max_credits_cost: int | None = None,
        description: str | None = None,
        category: str | None = None,
        position: int = 0,
        preview_path: str | None = None,
        before_path: str | None = None,
    ) -> EffectRecord:
        if credits_cost < 0:
            raise InvalidInput(errors={"credits_cost": "This must not be negative."})
        async with self._assets.saving() as saved:
            examples = await _save_examples(saved, {"preview_path": preview_path, "before_path": before_path})
            overrides, hashes = await self._save_overrides(saved, workflow_slug, property_overrides or {})

            async def work(tx: Tx) -> EffectRecord:
                workflow = await _lock_public_workflow(tx, workflow_slug)
                _check_overrides(workflow, overrides)
                values: dict[str, Any] = {
                    "credits_cost": credits_cost,
                    "price_formula": price_formula,
                    "max_credits_cost": max_credits_cost,
                    "is_active": is_active,
                }
                check_offer(workflow.parsed_properties, **values)
                return await catalogue.create_effect(
                    tx,
                    slug=slug,
                    name=name or slug,
                    workflow_id=workflow.id,
                    property_overrides=overrides,
                    asset_hashes=hashes,
                    max_wait_seconds=max_wait_seconds,
                    max_run_seconds=max_run_seconds,
                    description=description,
                    category=category,
                    position=position,
                    **examples,
                    **values,
                )

            return await self._databases.central.run(TransactionStep.CATALOGUE, work)

    async def change(self, slug: str, changes: Mapping[str, Any]) -> EffectView:
        """Change an effect. Submitted jobs are not affected."""
        async with self._assets.saving() as saved:
            values = {**changes, **await self._save_assets(saved, slug, changes)}
            changed = await self._databases.central.run(
                TransactionStep.CATALOGUE, lambda tx: _change(tx, slug, dict(values))
            )
        return await self.add_urls(changed)

    async def add_urls(self, view: EffectView) -> EffectView:
        effect = view.effect
        return replace(
            view,
            preview_url=await self._assets.example_url(effect.preview_path),
            before_url=await self._assets.example_url(effect.before_path),
        )

    async def _save_assets(self, saved: SavedAssets, slug: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Save the files of a change, and return the fields that depend on them."""
        values: dict[str, Any] = await _save_examples(saved, changes)
        if changes.keys() & {"workflow_slug", "property_overrides"}:
            before = await self.get(slug)
            # Hashes are stored by path, so they stay correct if the effect changes concurrently.
            overrides, values["asset_hashes"] = await self._save_overrides(
                saved,
                changes.get("workflow_slug", before.workflow_slug),
                changes.get("property_overrides", before.effect.property_overrides),
            )
            if "property_overrides" in changes:
                values["property_overrides"] = overrides
        return values

    async def _save_overrides(
        self, saved: SavedAssets, workflow_slug: str, overrides: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        async with self._databases.central.read() as tx:
            workflow = await catalogue.workflow(tx, slug=workflow_slug)
        if workflow is None:
            return dict(overrides), {}
        # Validate the values before reading the files.
        _check_overrides(workflow, overrides)
        return await saved.save_overrides(workflow.parsed_properties, overrides)

    async def delete(self, slug: str) -> None:
        """Delete an effect. Its jobs keep running."""
        if not await self._databases.central.run(
            TransactionStep.CATALOGUE, lambda tx: catalogue.delete_effect(tx, slug)
        ):
            raise _not_found(slug)

    async def get(self, slug: str) -> EffectView:
        async with self._databases.central.read() as tx:
            effect = await catalogue.effect(tx, slug=slug)
            if effect is None:
                raise _not_found(slug)
            workflow = _require_workflow(effect, await catalogue.workflow(tx, id_=effect.workflow_id))
        return await self.add_urls(EffectView(effect=effect, workflow_slug=workflow.slug))

    async def page(
        self, *, workflow_slug: str | None = None, is_active: bool | None = None, cursor: str | None = None, limit: int
    ) -> ResultPage[EffectView]:
        async with self._databases.central.read() as tx:
            workflow_id = None
            if workflow_slug is not None:
                workflow = await catalogue.workflow(tx, slug=workflow_slug)
                if workflow is None:
                    return ResultPage(items=[])
                workflow_id = workflow.id
            found, after = await catalogue.list_effects(
                tx, workflow_id=workflow_id, is_active=is_active, after_slug=cursor, limit=limit
            )
            slugs = await catalogue.workflow_slugs(tx, {effect.workflow_id for effect in found})
        views = [
            await self.add_urls(EffectView(effect=effect, workflow_slug=slugs[effect.workflow_id])) for effect in found
        ]
        return ResultPage(items=views, next_cursor=after)


async def _save_examples(saved: SavedAssets, values: Mapping[str, Any]) -> dict[str, str]:
    given = {name: path for name in _EXAMPLES if (path := values.get(name)) is not None}
    return {name: await saved.save_example(path, name) for name, path in given.items()}


async def _change(tx: Tx, slug: str, values: dict[str, Any]) -> EffectView:
    effect = await catalogue.lock_effect(tx, slug)
    if effect is None:
        raise _not_found(slug)
    if "workflow_slug" in values:
        workflow = await _lock_public_workflow(tx, values.pop("workflow_slug"))
        values["workflow_id"] = workflow.id
    else:
        workflow = _require_workflow(effect, await catalogue.workflow_to_use(tx, id_=effect.workflow_id))
    _check_overrides(workflow, values.get("property_overrides", effect.property_overrides))
    offer = {name: values.get(name, getattr(effect, name)) for name in _OFFER}
    is_new_price = any(offer[name] != getattr(effect, name) for name in _PRICE)
    check_offer(workflow.parsed_properties, **offer, is_new_price=is_new_price)
    changed = await catalogue.update_effect(tx, effect.id, **values) if values else effect
    return EffectView(effect=changed, workflow_slug=workflow.slug)


def _check_overrides(workflow: WorkflowRecord, overrides: Mapping[str, Any]) -> None:
    try:
        check_overrides(workflow.parsed_properties, overrides)
    except InvalidInput as error:
        raise prefix_errors("property_overrides", error) from error


async def _lock_public_workflow(tx: Tx, slug: str) -> WorkflowRecord:
    """Lock the workflow of an effect. Effects cannot use private workflows of tenants."""
    workflow = await catalogue.workflow_to_use(tx, slug=slug)
    if workflow is None or workflow.tenant_id is not None:
        raise InvalidInput(errors={"workflow_slug": f"There is no workflow {slug!r}."})
    return workflow


def _not_found(slug: str) -> NotFound:
    return NotFound(f"There is no effect {slug!r}.")


def _require_workflow(effect: EffectRecord, workflow: WorkflowRecord | None) -> WorkflowRecord:
    # Cannot happen, because a workflow cannot be deleted while effects use it.
    assert workflow is not None, f"the workflow of the effect {effect.slug!r} is missing"
    return workflow
