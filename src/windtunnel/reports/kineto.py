"""The Kineto trace, compressed as the profiler's own handlers write it."""

from __future__ import annotations

import gzip
import io
from collections.abc import Sequence

from windtunnel.reports import chrome_trace
from windtunnel.trace.finding import Finding
from windtunnel.trace.trace import Trace

SUFFIX = ".kineto.json.gz"
PER_PROCESS = True  # one file a process: its readers expect one rank in each


def render(trace: Trace, findings: Sequence[Finding]) -> bytes:
    """The trace as compressed JSON; the same trace gives the same bytes."""
    data = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=data, compresslevel=6, mtime=0) as file:
        file.write(chrome_trace.render(trace, findings).encode())
    return data.getvalue()
