"""Domain records that are sent unchanged. The client imports them from here."""

from pydantic import ConfigDict, with_config

from comfyrelay.configuration import EffectiveSetting
from comfyrelay.domain.autoscaling.spec import InstanceType
from comfyrelay.domain.bulk import BulkResult, RefusedJob
from comfyrelay.domain.consistency import Inconsistency
from comfyrelay.domain.image_shapes import InputWarning
from comfyrelay.domain.queue.wait_reasons import Waiting
from comfyrelay.domain.records.jobs import SavedView
from comfyrelay.domain.records.operations import AuditLogEntry, StuckStep
from comfyrelay.domain.records.workers import LeaseAttempt, Registration, WorkerMachine

__all__ = [
    "AuditLogEntry",
    "BulkResult",
    "EffectiveSetting",
    "Inconsistency",
    "InputWarning",
    "InstanceType",
    "LeaseAttempt",
    "RefusedJob",
    "Registration",
    "SavedView",
    "StuckStep",
    "Waiting",
    "WorkerMachine",
]

# Responses contain all fields, including those with a default.
_always_sent = with_config(ConfigDict(json_schema_serialization_defaults_required=True))
for _record in (BulkResult, Inconsistency, InstanceType, Registration, Waiting):
    _always_sent(_record)
