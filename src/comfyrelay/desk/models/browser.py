"""Find the model files that a form field can name, on the ComfyUI servers of the desk."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from comfyrelay.comfyui.client.model_files import ModelFile, ModelFiles, Picture
from comfyrelay.domain.properties import Property, PropertyType, Role
from comfyrelay.errors import ComfyError, InvalidInput, NotFound
from comfyrelay.services.timed_cache import TimedCache

# ComfyUI walks its folders to list them.
CACHE_SECONDS = 30.0
NO_MODEL = "No ComfyUI of this desk has this model, or it does not answer."
K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFolder:
    """A ComfyUI folder that a field chooses from, and the files that the field offers."""

    url: str
    name: str
    files: Mapping[str, ModelFile]


class ModelBrowser:
    """Finds models. Every request goes to a ComfyUI of the desk, and names a file that the field offers and ComfyUI
    lists."""

    def __init__(self, find_urls: Callable[[], Sequence[str]]) -> None:
        # The URLs may contain passwords.
        self._find_urls = find_urls
        self._names: dict[str, TimedCache[dict[str, list[str]]]] = {}
        self._details: dict[tuple[str, str], TimedCache[dict[str, ModelFile]]] = {}

    async def files(self, field: Property) -> list[ModelFile]:
        """Return the files that a field offers. ComfyUI servers that do not answer are skipped."""
        found: dict[str, ModelFile] = {}
        for folder in await self._folders(field):
            found = {**folder.files, **found}
        return list(found.values())

    async def picture(self, field: Property, name: str) -> Picture:
        """Return the picture of a model."""
        async with self._opened(field, name) as (models, folder):
            picture = await models.picture(folder.name, folder.files[name])
        if picture is None:
            raise NotFound("This model has no picture.")
        return picture

    async def metadata(self, field: Property, name: str) -> Mapping[str, Any]:
        """Return the metadata in a model file."""
        async with self._opened(field, name) as (models, folder):
            return await models.metadata(folder.name, name)

    @asynccontextmanager
    async def _opened(self, field: Property, name: str) -> AsyncIterator[tuple[ModelFiles, ModelFolder]]:
        found = next((folder for folder in await self._folders(field) if name in folder.files), None)
        if found is None:
            raise NotFound(NO_MODEL)
        try:
            async with ModelFiles.of(found.url) as models:
                yield models, found
        except ComfyError as error:
            raise NotFound(NO_MODEL) from error

    async def _folders(self, field: Property) -> list[ModelFolder]:
        """Return the folder of the field in each ComfyUI that answers."""
        found = await asyncio.gather(*(self._folder_at(url, field) for url in self._find_urls()))
        return [folder for folder in found if folder is not None]

    async def _folder_at(self, url: str, field: Property) -> ModelFolder | None:
        async def names() -> dict[str, list[str]]:
            async with ModelFiles.of(url) as models:
                return await models.names_by_folder()

        async def details() -> dict[str, ModelFile]:
            async with ModelFiles.of(url) as models:
                return await models.details(folder)

        try:
            listed = await _cached(self._names, url, names)
            if (folder := folder_of(field, listed) or "") == "":
                return None
            known = await _cached(self._details, (url, folder), details)
        except ComfyError:
            return None
        files = {name: known.get(name) or ModelFile(name=name) for name in listed[folder] if offers(field, name)}
        return ModelFolder(url=url, name=folder, files=files)


def model_field(properties: Sequence[Property], key: str) -> Property:
    """Return a field that names a model: a choice, or a text if there are too many models for a choice."""
    found = next((prop for prop in properties if prop.key == key and prop.user_configurable), None)
    if found is None:
        raise NotFound(f"There is no field {key!r}.")
    if found.type is not PropertyType.CHOICE and found.role is not Role.MODEL:
        raise InvalidInput(errors={"field": f"The field {key!r} does not name a model."})
    return found


def offers(field: Property, name: str) -> bool:
    """Whether a field can name this file. Its choices come from the node definitions of the workers."""
    return not field.choices or name in field.choices


def folder_of(field: Property, names: Mapping[str, Sequence[str]]) -> str | None:
    """Return the folder that contains most names of the field, because node definitions do not name the folder."""
    offered = frozenset(map(str, field.choices or (field.default_value,)))
    counts = {folder: len(offered.intersection(found)) for folder, found in names.items()}
    best = max(counts, key=counts.__getitem__, default=None)
    return best if best is not None and counts[best] > 0 else None


async def _cached(caches: dict[K, TimedCache[T]], key: K, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
    cache = caches.setdefault(key, TimedCache(read))
    try:
        return await cache.get(seconds=CACHE_SECONDS)
    except ComfyError:
        # The next request tries again.
        cache.clear()
        raise
