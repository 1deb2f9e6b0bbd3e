"""Connect the engine to the parts of the desk."""

from collections.abc import Sequence

from comfyrelay.desk.batches.output_copies import OutputCopies
from comfyrelay.desk.notifications.sender import NotificationSender
from comfyrelay.desk.scripts.workflow import varied
from comfyrelay.desk.simulated_jobs import SimulationPolicy
from comfyrelay.desk.startup.scripts import DeskScript
from comfyrelay.desk.startup.simulator import SIMULATOR
from comfyrelay.desk.startup.workers import WORKER, DeskWorkers
from comfyrelay.domain.queue.settlement import JobState
from comfyrelay.services.hooks import Hooks


def desk_hooks(
    notifications: NotificationSender,
    simulation: SimulationPolicy,
    workers: DeskWorkers,
    outputs: OutputCopies,
    script: DeskScript | None,
) -> Hooks:
    def on_ended(ended: Sequence[JobState]) -> None:
        outputs.forget_recorded(job.id for job in ended)
        notifications.job_ended(ended)

    return Hooks(
        on_ended=on_ended,
        checks=script.checks if script is not None else {},
        vary=varied,
        desk_workers=(WORKER, SIMULATOR),
        users_are_owners=True,
        comfyui_unreachable=workers.unreachable_at,
        is_worker_starting=workers.is_starting,
        stage_of=simulation.stage_of,
        on_removing=outputs.before_removal,
        on_removed=outputs.remove,
        on_reused=outputs.copy_reused,
        more_fleets=[(simulation.simulated_stage, SIMULATOR)],
        live_definitions=workers.node_definitions,
        on_missing=workers.refresh_models,
    )
