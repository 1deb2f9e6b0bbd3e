"""Services for users: submit, list, control and remove jobs, batches and files."""

from comfyrelay.services.accounts import Accounts
from comfyrelay.services.catalogue import Catalogue
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.jobs.batches import Batches
from comfyrelay.services.jobs.bulk import BulkActions
from comfyrelay.services.jobs.clearing import QueueClearing
from comfyrelay.services.jobs.ended_jobs import EndedJobsReader
from comfyrelay.services.jobs.graph_jobs import GraphJobs
from comfyrelay.services.jobs.job_workflows import JobWorkflows
from comfyrelay.services.jobs.removal import Removals
from comfyrelay.services.jobs.saved_views import SavedViewService
from comfyrelay.services.jobs.submission.accept import Acceptance
from comfyrelay.services.jobs.submission.measured_inputs import MeasuredInputs
from comfyrelay.services.jobs.submission.rerun_offers import RerunOffers
from comfyrelay.services.jobs.submission.rerun_rules import RerunRules
from comfyrelay.services.jobs.submission.resolve import Resolver
from comfyrelay.services.jobs.submission.reuse import Reuse
from comfyrelay.services.jobs.submission.submit import JobSubmission
from comfyrelay.services.jobs.test_runs import TestRuns
from comfyrelay.services.jobs.uploads import Uploads
from comfyrelay.services.jobs.views.estimate import Estimates
from comfyrelay.services.jobs.views.events import JobEvents
from comfyrelay.services.jobs.views.jobs import JobViews
from comfyrelay.services.jobs.views.live import LiveUpdates
from comfyrelay.services.jobs.views.media import MediaViews, RecentOutputs
from comfyrelay.services.jobs.views.overview import QueueOverview
from comfyrelay.services.jobs.views.posters import PendingPosters
from comfyrelay.services.jobs.views.units import QueueUnits
from comfyrelay.services.outbox import Outbox
from comfyrelay.services.queue import Queue, open_probes

__all__ = ["Jobs"]


class Jobs:
    def __init__(
        self,
        context: ServiceContext,
        outbox: Outbox,
        catalogue: Catalogue,
        queue: Queue,
        accounts: Accounts,
    ) -> None:
        limits_of, own_access = accounts.tenancy.own_limits, accounts.own_workflows
        databases, objects = context.databases, context.objects
        reuse = Reuse(objects, context.hooks)
        input_facts = MeasuredInputs(objects, open_probes(context.settings))
        self.resolve = Resolver(
            context,
            catalogue.graphs,
            catalogue.availability,
            reuse,
            own_access=own_access,
            input_facts=input_facts,
        )
        rules = RerunRules(databases, own_access)
        offers = RerunOffers(databases, own_access, input_facts)
        self.pending_posters = PendingPosters(databases, objects, queue.posters)
        self.accept = Acceptance(
            context, outbox, reuse, limits_of=limits_of, on_files_used=self.pending_posters.wakeup.notify
        )
        self.submit = JobSubmission(context, self.resolve, self.accept, reuse, rules=rules, offers=offers)
        self.test_runs = TestRuns(databases, self.submit)
        self.removal = Removals(context)
        self.uploads = Uploads(context, catalogue.library, limits_of=limits_of)
        self.batches = Batches(context, self.resolve, self.accept, reuse, rules=rules, offers=offers, queue=queue)
        self.bulk = BulkActions(context, queue.control, self.submit, self.batches, self.removal)
        self.media = MediaViews(context)
        self.views = JobViews(context, queue.wait_reasons, self.media, offers)
        self.graph_jobs = GraphJobs(context, catalogue, own_access, self.submit, self.views)
        self.job_workflows = JobWorkflows(databases, catalogue, self.views)
        self.recent = RecentOutputs(databases, self.media)
        self.overview = QueueOverview(context)
        self.estimates = Estimates(context, self.resolve, self.recent)
        self.clearing = QueueClearing(databases)
        self.saved_views = SavedViewService(databases)
        self.units = QueueUnits(databases, self.batches, queue.wait_reasons, self.media, self.views)
        self.events = JobEvents(databases)
        self.live = LiveUpdates(databases, self.views, self.batches, self.overview, context.notify_channel)
        self.ended_jobs = EndedJobsReader(databases)
