"""The gallery: list, mark, collect, download, delete and expire outputs."""

from comfyrelay.services.context import ServiceContext
from comfyrelay.services.gallery.collections import CollectionService
from comfyrelay.services.gallery.expiry import OutputExpiry
from comfyrelay.services.gallery.listing import GalleryListing
from comfyrelay.services.gallery.selection import OutputActions
from comfyrelay.services.gallery.zips import Zips
from comfyrelay.services.jobs import Jobs

__all__ = ["Gallery"]


class Gallery:
    def __init__(self, context: ServiceContext, jobs: Jobs) -> None:
        databases, objects = context.databases, context.objects
        self.listing = GalleryListing(
            databases,
            objects,
            jobs.media,
            ttl_seconds=context.settings.presigned_ttl_seconds,
            users_are_owners=context.hooks.users_are_owners,
        )
        self.actions = OutputActions(databases, jobs.bulk, jobs.removal)
        self.expiry = OutputExpiry(databases, self.actions, jobs.bulk)
        self.collections = CollectionService(databases, self.listing)
        self.zips = Zips(databases, objects, self.listing)
