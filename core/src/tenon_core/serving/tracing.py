"""OpenTelemetry traces: one server span a request, with the `gen_ai` attributes of the semantic conventions.

A client's `traceparent` is honoured, its choice not to be sampled too. What prompts and answers say is never in a span.
The library is an extra (`tenon-core[otel]`), imported only where `--otlp-traces-endpoint` asks for it; exporting runs
in a thread of its own, and a collector that is away costs requests nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenon_core.client.generation import ActiveRequest
from tenon_core.sampling.params import SamplingParams

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

# The conventions' names of what a route does; scores and labels have none, and are called as the route is.
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
FLUSH_MS = 3000
# The span of the request that the current task works on.
CURRENT: ContextVar[RequestSpan | None] = ContextVar("tenon_request_span", default=None)


@dataclass(slots=True, kw_only=True)
class RequestSpan:
    """The span of one request. Its owner ends it; whoever works on the request says what is known."""

    span: Span
    path: str
    model: str
    _is_told: bool = False

    @property
    def trace_id(self) -> str:
        """In hexadecimal, for log lines."""
        return f"{self.span.get_span_context().trace_id:032x}"

    def begin_work(
        self, requests: Sequence[ActiveRequest], params: SamplingParams | None, *, is_stream: bool = False
    ) -> None:
        """The request was understood and submitted. params: None where vectors are wanted."""
        operation = OPERATIONS.get(self.path, self.path.rpartition("/")[2])
        self.span.update_name(f"{operation} {self.model}")
        self._set(
            {
                "gen_ai.operation.name": operation,
                "gen_ai.request.model": self.model,
                "gen_ai.response.model": self.model,
            }
        )
        if params is None:
            return
        self._set(
            {
                "gen_ai.request.stream": is_stream,
                "gen_ai.output.type": "text" if params.structured_outputs is None else "json",
                "gen_ai.request.max_tokens": params.max_tokens,
                "gen_ai.request.temperature": params.temperature,
                "gen_ai.request.top_p": params.top_p,
                "gen_ai.request.top_k": params.top_k,
                "gen_ai.request.frequency_penalty": params.frequency_penalty,
                "gen_ai.request.presence_penalty": params.presence_penalty,
                "gen_ai.request.seed": params.seed,
                "gen_ai.request.stop_sequences": [*params.stop] or None,
                "gen_ai.request.choice.count": params.n * len(requests),
            }
        )

    def end_work(self, requests: Sequence[ActiveRequest]) -> None:
        """The work is over, or given up. May be called again; the first time counts."""
        if self._is_told or not requests:
            return
        self._is_told = True
        is_pooling = all(request.vectors is not None for request in requests)
        outputs = [sample.output for request in requests for sample in request.samples]
        metrics = [request.metrics for request in requests]
        firsts = [one.first_token_time - one.arrival_time for one in metrics if one.first_token_time is not None]
        errors = [request.error for request in requests if request.error is not None]
        self._set(
            {
                "gen_ai.usage.input_tokens": sum(len(request.output.prompt_token_ids) for request in requests),
                "gen_ai.usage.output_tokens": None if is_pooling else sum(len(one.token_ids) for one in outputs),
                "gen_ai.usage.cache_read.input_tokens": sum(one.output.num_cached_tokens for one in requests),
                "gen_ai.response.finish_reasons": None
                if is_pooling
                else [output.finish_reason or "abort" for output in outputs],
                "gen_ai.response.time_to_first_chunk": min(firsts, default=None),
                "tenon.queued_seconds": max((one.queued_seconds or 0.0 for one in metrics), default=None),
                "error.type": errors[0].kind if errors else None,
            }
        )

    def answer(self, status: int) -> None:
        """The HTTP status that was sent; 0: none, the client went before."""
        from opentelemetry.trace import StatusCode

        if status:
            self.span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self.span.set_status(StatusCode.ERROR)
            self.span.set_attribute("error.type", str(status))
        self.span.end()

    def _set(self, attributes: Mapping[str, Any]) -> None:
        self.span.set_attributes({name: value for name, value in attributes.items() if value is not None})


@dataclass(slots=True, kw_only=True)
class Traces:
    """Where spans are made."""

    provider: TracerProvider
    tracer: Tracer
    model: str

    @classmethod
    def open(cls, endpoint: str, *, model: str) -> Traces:
        """Spans go to `endpoint` in batches. model: as clients know it.

        Sampling and resource follow OpenTelemetry's own OTEL_ variables.
        """
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create({SERVICE_NAME: "tenon"}).merge(OTELResourceDetector().detect())
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        return cls(provider=provider, tracer=provider.get_tracer("tenon_core.serving"), model=model)

    def start(self, *, method: str, path: str, request_id: str, headers: Mapping[str, str]) -> RequestSpan:
        """A span for a request, below the client's where it sent one. headers: lower-case names."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        span = self.tracer.start_span(
            f"{method} {path}",
            context=TraceContextTextMapPropagator().extract(carrier),
            kind=SpanKind.SERVER,
            attributes={
                "http.request.method": method,
                "http.route": path,
                "gen_ai.provider.name": "tenon",
                "tenon.request_id": request_id,
            },
        )
        return RequestSpan(span=span, path=path, model=self.model)

    def close(self) -> None:
        """Send what is left, for a while at most. Blocks: not to be called in an event loop."""
        self.provider.force_flush(FLUSH_MS)
        self.provider.shutdown()
