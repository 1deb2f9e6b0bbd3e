"""Send spans over OTLP with HTTP. Only this module imports OpenTelemetry."""

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags, set_span_in_context

from comfyrelay import __version__

TIMEOUT_SECONDS = 5
_NANO = 1_000_000_000


class _Ids(RandomIdGenerator):
    """Returns ids that were set in advance for the next span."""

    def __init__(self) -> None:
        self.trace_id: int | None = None
        self.span_id: int | None = None

    def generate_trace_id(self) -> int:
        return super().generate_trace_id() if self.trace_id is None else self.trace_id

    def generate_span_id(self) -> int:
        return super().generate_span_id() if self.span_id is None else self.span_id


class Exporter:
    """Records ended spans. A background thread sends them, and drops them while the receiver is unreachable."""

    def __init__(self, url: str, *, service: str) -> None:
        self._ids = _Ids()
        resource = Resource.create({"service.name": service, "service.version": __version__})
        # Sample all spans, because a sampling decision would have to be sent with the job.
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False, id_generator=self._ids
        )
        exporter = OTLPSpanExporter(endpoint=url, timeout=TIMEOUT_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("comfyrelay", __version__)

    def close(self) -> None:
        self._provider.shutdown()

    def record(
        self,
        name: str,
        *,
        trace_id: int,
        span_id: int | None,
        parent_id: int | None,
        begin: float,
        end: float,
        failure: str | None,
        attributes: dict[str, str],
    ) -> None:
        context = Context()
        if parent_id is not None:
            parent = SpanContext(trace_id, parent_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
            context = set_span_in_context(NonRecordingSpan(parent), context)
        # The tracer requests the ids before this call returns.
        self._ids.trace_id, self._ids.span_id = trace_id, span_id
        span = self._tracer.start_span(name, context=context, attributes=attributes, start_time=int(begin * _NANO))
        if failure is not None:
            span.set_status(Status(StatusCode.ERROR, failure))
        span.end(int(end * _NANO))
