"""The report for programs: one JSON object, described in docs/reports.md."""

from __future__ import annotations

import json
from collections.abc import Sequence

from windtunnel.checks._edits import edit_of
from windtunnel.checks._program import Edit
from windtunnel.reports.parts import host
from windtunnel.reports.parts.compiled import Compiled
from windtunnel.reports.parts.peak import Peak
from windtunnel.reports.parts.summary import DeviceTotals, OptimizerStep, Summary, summarize
from windtunnel.reports.parts.time import RunTiming
from windtunnel.reports.schema import Ending
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Site
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import FAR

SUFFIX = ".json"
SCHEMA_VERSION = 2  # raised when a key changes its meaning or goes away; new keys may come without


def render(trace: Trace, findings: Sequence[Finding]) -> str:
    """The report as JSON text, its keys in a fixed order."""
    return json.dumps(as_dict(trace, findings), indent=1, ensure_ascii=False) + "\n"


def render_run(trace: Trace, findings: Sequence[Finding], ending: Ending) -> str:
    """The same of a run that has just ended, with how it did."""
    return json.dumps({**as_dict(trace, findings), "run": ending}, ensure_ascii=False) + "\n"


def as_dict(trace: Trace, findings: Sequence[Finding]) -> Json:
    """The report as plain dicts and lists; `host` is measured on this machine, and so another figure in every run."""
    summary = summarize(trace, findings)
    return {
        "schema_version": SCHEMA_VERSION,
        "emulated": summary.emulated,
        "times": {"source": summary.source, "band": summary.band, "host_factor": summary.host_factor},
        "verdict": summary.verdict,
        "why": summary.why,
        "next": summary.next,
        "program": summary.program,
        "operations": summary.operations,
        "duration_ns": summary.end_ns - summary.begin_ns,
        "timing": _timing(summary.timing, summary.band) | _samples(summary),
        "devices": [_device(device) for device in summary.devices],
        "host": host.as_dict(summary.host),
        "compiled": None if summary.compiled is None else _compiled(summary.compiled),
        "steps": [_step(step) for step in summary.steps],
        "not_decidable": list(summary.not_decidable),
        "findings": [_finding(finding, edit_of(finding, trace.line, trace.text)) for finding in summary.findings],
        "facts": {key: trace.facts[key] for key in ("options", "versions", "rank") if key in trace.facts},
    }


def _compiled(compiled: Compiled) -> Json:
    graphs = [{**graph._asdict(), "site": _site(graph.site)} for graph in compiled.graphs]
    return {"graphs": graphs, "breaks": compiled.breaks, "recompiled": compiled.recompiled}


def _samples(summary: Summary) -> dict[str, object]:
    samples, step_ns = summary.samples, summary.timing.step_ns
    if samples is None:
        return {"samples": None}
    known = {
        "per_step": samples.number,
        "per_s": samples.number * 1e9 / step_ns if step_ns else None,
        "source": "loader" if samples.loader else "copies",
    }
    return {"samples": known | (_site(samples.site) or {})}


def _timing(timing: RunTiming, band: float | None) -> dict[str, object]:
    return {
        "steps": timing.steps,
        "step_ns": timing.step_ns,
        "step_range_ns": timing.step_range_ns(band),
        "measured_near": None if band is None else band < FAR,
        "first_step_ns": timing.first_step_ns,
        "steps_per_s": timing.steps_per_s,
        "first_uses": [{"name": name, "duration_ns": duration_ns} for name, duration_ns in timing.first_uses],
        "devices": [
            {
                "index": split.device,
                "window_ns": split.window_ns,
                "busy_ns": split.busy_ns,
                "causes": split.causes,
                "matrix_ns": split.matrix_ns,
                "tensor_core_ns": split.tensor_core_ns,
                "moved_ns": split.moved_ns,
                "hidden_ns": split.hidden_ns,
            }
            for split in timing.splits
        ],
        "operators": [
            {
                "device": one.device,
                "name": one.name,
                "count": one.times,
                "duration_ns": one.duration_ns,
                "share": round(one.share, 6),
                "bound": one.bound,
                "roofline_share": None if one.roofline is None else round(one.roofline, 4),
            }
            for one in timing.operators
        ],
    }


def _finding(finding: Finding, edit: Edit | None) -> Json:
    return {
        "edit": None if edit is None else edit._asdict(),
        "code": finding.code,
        "severity": finding.severity,
        "file": finding.site.file,
        "line": finding.site.line,
        "function": finding.site.function,
        "message": finding.message,
        "advice": finding.advice,
        "count": finding.times,
        "lost_ns": finding.lost_ns,
        "size_bytes": finding.size_bytes,
        "saved_share": None if finding.saved_share is None else round(finding.saved_share, 4),
        "saved_of": finding.saved_of,
        "device": finding.device,
        "other": _place(finding.other),
        "allocated": _place(finding.allocated),
        "stack": _stack(finding.site),
    }


def _place(site: Site) -> Json | None:
    """A line with its callers, the latter when stacks were kept."""
    line = _site(site)
    return line if line is None or not site.stack else {**line, "stack": _stack(site)}


def _stack(site: Site) -> list[Json]:
    return [{"file": file, "line": line, "function": name} for file, line, name in site.stack]


def _site(site: Site) -> Json | None:
    return {"file": site.file, "line": site.line, "function": site.function} if site.file else None


def _device(device: DeviceTotals) -> Json:
    return {
        "index": device.index,
        "name": device.name,
        "memory_bytes": device.memory_bytes,
        "peak_allocated_bytes": device.peak_allocated_bytes,
        "peak_reserved_bytes": device.peak_reserved_bytes,
        "peak_source": "modelled" if device.modelled else "measured",
        "peak_band": device.peak_band,
        "peak_at_most_bytes": device.peak_at_most_bytes,
        "peak_unsure": device.peak_unsure or None,
        "peak": None if device.peak is None else _peak(device.peak),
        "kernels": device.kernels,
        "kernel_ns": device.kernel_ns,
        "copies": device.copies,
        "copied_bytes": device.copied_bytes,
        "collectives": device.collectives,
        "busy_share": round(device.busy_share, 6),
        "synchronizations": device.synchronizations,
        "wait_ns": device.wait_ns,
        "waits": [
            {**(_site(wait.site) or {}), "name": wait.name, "count": wait.times, "wait_ns": wait.wait_ns}
            for wait in device.waits.values()
        ],
        "transfers": [
            {
                **(_site(transfer.site) or {}),
                "name": transfer.name,
                "count": transfer.times,
                "size_bytes": transfer.size_bytes,
                "duration_ns": transfer.duration_ns,
            }
            for transfer in device.transfers.values()
        ],
    }


def _peak(peak: Peak) -> dict[str, object]:
    return {
        "time_ns": peak.time_ns,
        "allocated_bytes": peak.allocated_bytes,
        "categories": peak.categories,
        "lines": [
            {
                **(_site(holder.site) or {}),
                "category": holder.category,
                "blocks": holder.blocks,
                "size_bytes": holder.size_bytes,
            }
            for holder in peak.holders
        ],
        "other_bytes": peak.other_bytes,
        "modules": [
            {
                "module": one.module,
                "category": one.category,
                "operator": one.operator,
                "tensor": one.tensor,
                "modules": one.modules,
                "blocks": one.blocks,
                "size_bytes": one.size_bytes,
                "site": _site(one.site),
            }
            for one in peak.modules
        ],
    }


def _step(step: OptimizerStep) -> Json:
    return {
        "number": step.number,
        "start_ns": step.start_ns,
        "end_ns": step.end_ns,
        "kernels": step.kernels,
        "kernel_ns": step.kernel_ns,
        "copied_bytes": step.copied_bytes,
        "synchronizations": step.synchronizations,
    }
