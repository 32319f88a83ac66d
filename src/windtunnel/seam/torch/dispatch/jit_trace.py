"""Whether `torch.jit.trace` records a graph on this thread, and code of ours that shall not be in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

C = torch._C
TRACER = C._dispatch_key_parse("Tracer")


@contextmanager
def paused() -> Iterator[None]:
    """Code of ours, of which nothing belongs into a graph that is being traced."""
    # Inside an operator the tracer's key is excluded, and then the state may not be set.
    exclude = C._dispatch_tls_local_exclude_set().remove(TRACER)
    with C._ForceDispatchKeyGuard(C._dispatch_tls_local_include_set(), exclude):
        state = C._get_tracing_state()
        C._set_tracing_state(None)  # type: ignore[attr-defined]
        try:
            yield
        finally:
            C._set_tracing_state(state)  # type: ignore[attr-defined]


def is_on() -> bool:
    """Whether this thread records a graph."""
    return C._get_tracing_state() is not None
