"""Bodies of jobs and their events, for customers and for operators."""

from comfyrelay.domain.queue.settlement import Event
from comfyrelay.domain.queue.states import shown_status
from comfyrelay.protocol import jobs as wire
from comfyrelay.services.jobs.views.jobs import JobView


def job_body(view: JobView) -> wire.Job:
    outputs = [wire.Output.of(output, output.file, file_id=output.file.id) for output in view.outputs]
    status = shown_status(view.job.status, is_prefetched=view.is_prefetched)
    return wire.Job.of(
        view,
        view.job,
        status=status,
        outputs=outputs,
        error=view.job.error_message,
        again_tokens=view.again_tokens,
    )


def event_body(event: Event) -> wire.JobEvent:
    return wire.JobEvent(id=event.seq, type=event.type, data={**event.data, "at": event.created_at.isoformat()})
