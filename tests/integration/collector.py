# SPDX-License-Identifier: Apache-2.0
"""A collector of spans for tests: OTLP/HTTP in JSON, checked against OpenTelemetry's own schema."""

import base64
import http.server
import json
import threading

import pytest
from harness import skip, until


def _as_proto3(value):
    """OTLP's JSON has ids in hex; JSON of proto3 has bytes in base64."""
    if isinstance(value, dict):
        return {
            key: base64.b64encode(bytes.fromhex(part)).decode()
            if key in ("traceId", "spanId", "parentSpanId")
            else _as_proto3(part)
            for key, part in value.items()
        }
    return [_as_proto3(part) for part in value] if isinstance(value, list) else value


class Span:
    """A span as a test looks at it."""

    def __init__(self, span, resource):
        self.name, self.resource = span.name, resource
        self.trace, self.id = span.trace_id.hex(), span.span_id.hex()
        self.parent = span.parent_span_id.hex()
        self.start, self.end = span.start_time_unix_nano, span.end_time_unix_nano
        self.links = [link.span_id.hex() for link in span.links]
        self.is_error = span.status.code == 2
        self.attributes = _attributes(span.attributes)
        assert self.start <= self.end and len(span.trace_id) == 16 and len(span.span_id) == 8

    def __repr__(self):
        return f"<{self.name} {self.id} below {self.parent or 'none'}>"


def _attributes(pairs):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


class Collector:
    """Listens on a free port of loopback. `status` is what it answers. Usable as a context."""

    def __init__(self):
        try:
            from google.protobuf import json_format
            from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
        except ImportError:
            skip("needs opentelemetry-proto: it has the schema of traces")
        self.status, self.spans, self.headers, self.sizes = 200, [], [], []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):  # noqa: N802
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if outer.status == 200:
                    assert self.path == "/v1/traces"
                    assert self.headers["Content-Type"] == "application/json"
                    request = trace_service_pb2.ExportTraceServiceRequest()
                    json_format.Parse(json.dumps(_as_proto3(json.loads(body))), request)
                    outer.headers.append(dict(self.headers))
                    outer._take(request)
                self.send_response(outer.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def _take(self, request):
        n = 0
        for resource in request.resource_spans:
            of = _attributes(resource.resource.attributes)
            for scope in resource.scope_spans:
                assert scope.scope.name == "rollbox"
                self.spans += [Span(span, of) for span in scope.spans]
                n += len(scope.spans)
        self.sizes.append(n)

    def wait(self, n):
        """The spans, once there are so many."""
        until(lambda: len(self.spans) >= n)
        return self.spans

    def named(self, name):
        """The only span of a name, once it is there."""
        until(lambda: any(span.name == name for span in self.spans))
        (span,) = [span for span in self.spans if span.name == name]
        return span

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def collector():
    """A Collector."""
    with Collector() as one:
        yield one
