"""Operations: inspection, live changes, metrics, readiness, reconciliation and retention."""

from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlsplit

from comfyrelay.services.accounts import Accounts
from comfyrelay.services.catalogue import Catalogue
from comfyrelay.services.context import DISK, ServiceContext
from comfyrelay.services.jobs import Jobs
from comfyrelay.services.operations.alerts import Alerts
from comfyrelay.services.operations.erasure import Erasure
from comfyrelay.services.operations.fleet_problems import FleetProblems
from comfyrelay.services.operations.inspection import Inspection
from comfyrelay.services.operations.live import AdminLive
from comfyrelay.services.operations.metrics import MetricsReader
from comfyrelay.services.operations.outages import Outages
from comfyrelay.services.operations.readiness import Readiness
from comfyrelay.services.operations.reconcile import Reconciler
from comfyrelay.services.operations.reconcile_runs import ReconcileRuns
from comfyrelay.services.operations.repair import AutoRepair
from comfyrelay.services.operations.retention import Retention
from comfyrelay.services.operations.samples import Samples
from comfyrelay.services.operations.storage_check import StorageChecks
from comfyrelay.services.operations.support import Support
from comfyrelay.services.outbox import Outbox
from comfyrelay.services.queue import Queue
from comfyrelay.services.workers import WorkerServices

__all__ = ["Operations"]


class Operations:
    def __init__(
        self,
        context: ServiceContext,
        outbox: Outbox,
        catalogue: Catalogue,
        queue: Queue,
        *,
        workers: WorkerServices,
        jobs: Jobs,
        accounts: Accounts,
        failing_fleets: Callable[[], Awaitable[Sequence[str]]],
    ) -> None:
        settings, databases, objects = context.settings, context.databases, context.objects
        self.reconciler = Reconciler(databases, queue.decisions, outbox.applier, outbox.recovery)
        self.auto_repair = AutoRepair(databases, self.reconciler)
        offline_seconds = settings.worker_offline_seconds
        self.samples = Samples(databases, worker_offline_seconds=offline_seconds)
        self.fleet_problems = FleetProblems(
            databases, self.samples, failing_fleets=failing_fleets, worker_offline_seconds=offline_seconds
        )
        self.live = AdminLive(databases, context.notify_channel, worker_offline_seconds=offline_seconds)
        self.reconcile_runs = ReconcileRuns(databases, self.reconciler)
        self.retention = Retention(
            databases,
            objects,
            jobs.removal,
            catalogue.node_definitions,
            queue.previews,
            graphs=catalogue.private_graphs,
            assets=catalogue.assets,
            delete_old=(
                self.samples.delete_old,
                workers.logs.delete_old,
                jobs.graph_jobs.remove_unused,
            ),
            disk=DISK,
            retention_days=settings.retention_days,
            unused_upload_hours=settings.unused_upload_hours,
        )
        self.erasure = Erasure(context, queue)
        self.inspection = Inspection(databases, queue.control, jobs.submit, queue.wait_reasons)
        self.support = Support(databases, self.inspection, jobs.views, jobs.submit, accounts.ledger)
        self.metrics = MetricsReader(databases)
        self.readiness = Readiness(databases, objects)
        self.outages = Outages(settings, databases, self.readiness)
        own = urlsplit(settings.base_url)
        self.alerts = Alerts(databases, settings.alerts, accounts.mailer, host=own.netloc)
        origins = [f"{own.scheme}://{own.netloc}", *settings.allowed_origins]
        self.storage_checks = StorageChecks(objects, origins=origins)
