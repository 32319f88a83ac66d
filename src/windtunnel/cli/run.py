"""`windtunnel run`: run a program on emulated GPUs, then say what happened."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click

from windtunnel import agent, cluster, foreign, gpus, launch, libraries
from windtunnel.analysis import compare
from windtunnel.checks._gates import Gate, parse_gates, refuse_undecidable, violations
from windtunnel.cli._help import everyday, help_all_option
from windtunnel.cli._options import F, emulation_options, given, verbose_option
from windtunnel.cli._paths import require_writable
from windtunnel.compiler.extensions import CUDA_SUFFIXES
from windtunnel.errors import UsageError
from windtunnel.measure.kineto_facts import NEEDS_ACCESSES, NEEDS_CONTENTS, NEEDS_PROGRAM
from windtunnel.measure.present import visible_gpus
from windtunnel.ranks.fold import EVERY, Fold, parse
from windtunnel.reports.schema import Ending
from windtunnel.trace.finding import Finding
from windtunnel.trace.merge import merge
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import plural

FINDING = 64
REFUSED = 66
NO_EVIDENCE = 67
INTERRUPTED = 130
EXIT_CODES = (
    "The exit code is the program's; 64: a finding of --fail-on, 65: it does not fit into the GPUs' memory, 66: it "
    "needs what the emulation must refuse, 67: its records are incomplete, 2: wrong usage."
)
UNDECIDABLE = (*NEEDS_ACCESSES, *NEEDS_CONTENTS, *NEEDS_PROGRAM)  # in what is recorded on real GPUs

# torchrun's options, which go to torchrun's own elastic agent as they are.
TORCHRUN_SHOWN = {
    "nproc-per-node": "Processes to start on this machine, one a GPU as a rule: torchrun's own elastic agent does it.",
    "nnodes": "Number of machines, or MIN:MAX.",
    "max-restarts": "How often the agent may restart the processes.",
    "master-addr": "Address of rank 0's machine.",
    "master-port": "Port of rank 0's machine.",
}
TORCHRUN_HIDDEN = (
    "node-rank",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "monitor-interval",
    "start-method",
    "role",
    "log-dir",
    "redirects",
    "tee",
    "local-addr",
    "local-ranks-filter",
)
TORCHRUN = (*TORCHRUN_SHOWN, *TORCHRUN_HIDDEN)
RENDEZVOUS = {"nnodes", "master-addr", "master-port", "rdzv-backend", "rdzv-endpoint", "node-rank"}


def torchrun_options(command: F) -> F:
    """Add torchrun's options to a command."""
    command = click.option("--standalone", is_flag=True, help="A rendezvous of this machine alone (the default).")(
        command
    )
    for name in reversed(TORCHRUN):
        command = click.option(f"--{name}", help=TORCHRUN_SHOWN.get(name), hidden=name in TORCHRUN_HIDDEN)(command)
    return command


@dataclass(frozen=True)
class Output:
    """As click's `obj`: a file that takes what the program prints, and what to call when it has ended."""

    file: IO[bytes]
    ended: Callable[[], None]


@click.command(
    "run",
    cls=everyday(
        "gpus",
        "no_data",
        "memory_history",
        "stop_after",
        "nproc_per_node",
        "cluster",
        "module",
        "code",
        "report",
        "trace",
        "fail_on",
        "verbose",
        "quiet",
        "as_json",
        exit_codes=EXIT_CODES,
    ),
    context_settings={"allow_interspersed_args": False},
    epilog="Every option but torchrun's can be set as WINDTUNNEL_NAME (hyphens as underscores) in the environment and "
    "in the table [tool.windtunnel] of pyproject.toml. " + EXIT_CODES,
)
@help_all_option
@emulation_options
@click.option("-q", "--quiet", is_flag=True, envvar="WINDTUNNEL_QUIET", help="No report on the terminal.")
@verbose_option
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object on stdout at the end, for programs: the report and how it ended; the program's output goes "
    "to stderr.",
)
@click.option("--trace", metavar="PATH", envvar="WINDTUNNEL_TRACE", help="Save the trace of what happened.")
@click.option(
    "--report",
    metavar="PATH",
    multiple=True,
    envvar="WINDTUNNEL_REPORT",
    help="Write a report, in the format of the suffix; may be given several times.",
)
@click.option(
    "--fail-on",
    metavar="CODE[=N],...",
    multiple=True,
    envvar="WINDTUNNEL_FAIL_ON",
    help="End with 64 when a finding of that code, or of a severity (error, warning, info) or worse, occurs more than "
    "N times, and with 67 when records are missing.",
)
@click.option(
    "--host-from",
    metavar="RUN.json",
    envvar="WINDTUNNEL_HOST_FROM",
    help="Take the host's own work (loading, decoding, Python), which is not counted without data, from the report "
    "that a run with data wrote by --report RUN.json.",
)
@torchrun_options
@click.option(
    "--cluster",
    metavar="NODESxGPUSxMODEL",
    envvar="WINDTUNNEL_CLUSTER",
    help="Run as every rank of a cluster, such as 64x8xH100, by a few processes that stand for all; without data.",
)
@click.option(
    "--check-fold",
    metavar="N|all",
    envvar="WINDTUNNEL_CHECK_FOLD",
    help="With --cluster: how many more ranks of each class are played, to compare them with the one that stands for "
    "them; all: every rank.  [default: 1]",
)
@click.option("-m", "--module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.option("-c", "--code", is_flag=True, help="PROGRAM is Python code, as in python -c.")
@click.option("--no-python", is_flag=True, help="PROGRAM is any command that starts Python sooner or later.")
@click.argument("program", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(program: str | None, arguments: tuple[str, ...], **options: Any) -> int:
    """Run PROGRAM, unchanged, on emulated GPUs.

    All that follows PROGRAM goes to it untouched. Its output is its own; the report comes on stderr when it has ended.
    A CUDA source with a main (.cu) is built first; NVCC_APPEND_FLAGS has its further sources and options.

    \b
    windtunnel run --gpus 2xV100 train.py --epochs 3
    windtunnel run --gpus 8xA100 --nproc-per-node 8 train_ddp.py
    windtunnel run --cluster 64x8xH100 train_fsdp.py
    windtunnel run --gpus H100 --report out.html -m package.train
    """
    target = target_of(program, arguments, options)
    launch.require_framework(target)
    gates = parse_gates(options["fail_on"])
    outputs = _outputs(options["report"], options["trace"])
    options["host_record"] = options["host_from"] and compare.host_work(options["host_from"])
    torchrun = _torchrun(options)
    ranks = str(options["nproc_per_node"])
    fold = _fold(options, torchrun is not None)
    measures = _measures(options)
    if measures:
        refuse_undecidable(gates, UNDECIDABLE, "a run that is measured")
    elif fold is None and options["gpus"] is None and ranks.isdecimal() and int(ranks) > 2:
        options["gpus"] = ranks  # a GPU for each rank
    line = target.command() if torchrun is None else target.elastic_command(torchrun)
    with _folder() as name, launch.guarded(Path(name)):
        folder = Path(name)
        launch.prepare(folder)
        if measures:
            variables = launch.measuring_environment(folder, os.environ)
        else:
            variables = launch.environment({**given(options), **outputs.needs()}, folder, os.environ)
        if torchrun is not None or fold is not None:
            variables.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, which also warns of it
        output = click.get_current_context().obj
        file = output.file if isinstance(output, Output) else None

        def start(line: list[str]) -> launch.Ended:
            return launch.run(line, variables, sys.stderr.buffer if options["as_json"] else file, file)

        if fold is not None:
            was = cluster.play(fold, target, folder, lambda one: start(agent.command(one, target.command())))
            if isinstance(output, Output):
                output.ended()
            return _finish(was.ended.code, was.result, gates, outputs, options)
        code, interrupted = start(line)
        if interrupted and torchrun is not None:
            code = INTERRUPTED  # the elastic agent ends with 1, which says nothing
        if isinstance(output, Output):
            output.ended()
        left = launch.left_behind(folder) if code and not (interrupted or options["quiet"]) else []
        if left:
            _say(
                f"of the processes that the program started, still running: {', '.join(map(str, left))}; on real GPUs "
                "they would keep the memory that they use"
            )
        wanted = gates or outputs or options["as_json"] or not options["quiet"]
        failed = 0 < code <= 128 and not interrupted
        if wanted:
            result = launch.collect(folder, failed, interrupted)
        else:
            result = launch.Result(outcome=launch.outcome(folder))
        if interrupted:
            for trace in result.traces:
                trace.facts["interrupted"] = True
        return _finish(code, result, gates, outputs, options)


def _measures(options: Json) -> bool:
    """Whether the program is to run on this machine's own GPUs: it has some, and no emulation was described."""
    if given(options):
        return False
    gpus = visible_gpus()
    if gpus:
        _say(f"measuring on {plural(gpus, 'real GPU')}; --gpus emulates instead")
    return gpus > 0


def _fold(options: Json, has_torchrun: bool) -> Fold | None:
    """How the ranks of `--cluster` are played at first; sets the GPUs of a node, and that there are no data."""
    spec, checked = options["cluster"], options["check_fold"]
    if spec is None:
        if checked is not None:
            raise UsageError("--check-fold says how the ranks of a --cluster are compared: give one")
        return None
    if has_torchrun or options["gpus"] is not None:
        raise UsageError("--cluster names the GPUs and starts the ranks: leave out --gpus and torchrun's options")
    nodes, per_node, model = parse(str(spec))
    emulated = f"{per_node}x{model}"
    gpus.parse(emulated)
    options["gpus"], options["no_data"] = emulated, True
    checked = str(checked or "1")
    if checked != "all" and not checked.isdecimal():
        raise UsageError(f"--check-fold cannot be {checked}: it is a number of ranks of each class, or all")
    return Fold(nodes * per_node, per_node, EVERY if checked == "all" else int(checked))


def _folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="windtunnel-", ignore_cleanup_errors=True)
    except OSError as error:
        raise UsageError(
            f"no folder for temporary files can be written ({error.strerror}): set TMPDIR to one"
        ) from error


def target_of(program: str | None, arguments: tuple[str, ...], options: Json) -> launch.Program:
    kinds = [kind for kind, flag in (("module", "module"), ("code", "code"), ("command", "no_python")) if options[flag]]
    if len(kinds) > 1:
        raise UsageError("-m, -c and --no-python exclude each other: give one of them")
    if program is None:
        raise UsageError("no program was given: windtunnel run [options] script.py [arguments]")
    kind = kinds[0] if kinds else "script"
    if kind == "script" and program != "-" and not os.path.exists(program):
        found = shutil.which(program, path=launch.search_path(os.environ))
        hint = "--no-python runs a command" if found else "check the path (-m runs a module, -c code)"
        raise UsageError(f"there is no file {program!r} to run; {hint}")
    if kind == "command" and shutil.which(program, path=launch.search_path(os.environ)) is None:
        raise UsageError(f"there is no command {program!r} to run; check its name and PATH")
    if kind == "script" and program.endswith(CUDA_SUFFIXES):
        kind = "cuda"
    return launch.Program(kind, program, arguments)


def _torchrun(options: Json) -> list[str] | None:
    """The options for torchrun's agent, or None when one process is enough."""
    chosen = {name: options[name.replace("-", "_")] for name in TORCHRUN}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if not chosen and not options["standalone"]:
        return None
    words = [f"--{name}={value}" for name, value in chosen.items()]
    if options["standalone"] or not RENDEZVOUS & chosen.keys():
        words.append("--standalone")
    return words


class Outputs:
    """The files that the person asked for, checked before the program runs rather than after."""

    def __init__(self, reports: Sequence[str], trace: str | None) -> None:
        self.reports = [Path(report) for report in reports]
        self.trace = None if trace is None else Path(trace)

    def __bool__(self) -> bool:
        return bool(self.reports or self.trace)

    def needs(self) -> dict[str, object]:
        """The fields of `options.Options` that these files cannot be written without."""
        from windtunnel import reports

        return {"memory_history": True} if any(getattr(reports.find(p), "HISTORY", False) for p in self.reports) else {}

    def write(self, result: launch.Result, findings: list[Finding]) -> None:
        """Write them. What another program reads holds one process: rank 1's is beside rank 0's, as out.rank1.trace."""
        from windtunnel import reports

        for index, trace in enumerate(result.traces):
            rank = trace.facts.get("rank") or index
            if self.trace is not None:
                trace.save(_for_rank(self.trace, index, rank))
            for path in self.reports:
                if getattr(reports.find(path), "PER_PROCESS", False):
                    reports.write(_for_rank(path, index, rank), trace, findings)
        for path in self.reports:
            if not getattr(reports.find(path), "PER_PROCESS", False):
                reports.write(path, merge(result.traces), findings)


def _for_rank(path: Path, index: int, rank: int) -> Path:
    if index == 0:
        return path
    stem, dot, suffixes = path.name.partition(".")
    return path.with_name(f"{stem}.rank{rank}{dot}{suffixes}")


def _outputs(report_paths: Sequence[str], trace: str | None) -> Outputs:
    if report_paths:
        from windtunnel import reports

        for path in report_paths:
            reports.find(path)
    for path in [*report_paths, *([trace] if trace else [])]:
        require_writable(Path(path))
    return Outputs(report_paths, trace)


def _finish(code: int, result: launch.Result, gates: Sequence[Gate], outputs: Outputs, options: Json) -> int:
    from windtunnel.judgement import judge

    final = result.outcome if code and code <= 128 and result.outcome else code
    for trace in result.traces:
        trace.facts["exit_code"] = final
        if sys.argv[1:2] == ["run"] and not options["memory_history"]:
            trace.facts["command"] = shlex.join(["windtunnel", "run", "--memory-history", *sys.argv[2:]])
        if final == REFUSED and result.notes:
            trace.facts["refusal"] = result.notes[0].strip()
        if options["host_record"]:
            trace.facts |= {"host_from": options["host_record"], "host_from_file": Path(options["host_from"]).name}
    findings = launch.merge(judge(result.traces))
    if result.traces:
        outputs.write(result, findings)
    broken = violations(gates, findings)
    ending = final or (FINDING if broken else NO_EVIDENCE if result.lost and (gates or outputs) else 0)
    if options["as_json"]:
        _print_json(result, findings, {
            "exit_code": ending, "program_exit_code": code, "gates": list(broken), "lost": list(result.lost),
        })  # fmt: skip
        return ending
    try:
        if not options["quiet"]:
            for library in result.libraries:
                _say(libraries.sentence(library))
            _show(result, findings, code, options)
        for text in [*result.lost, *broken, *_missed(result, options["fault"])]:
            _say(text)
    except BrokenPipeError:  # nobody reads the report (`2>&1 | head`): the exit code is the program's all the same
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    return ending


def _print_json(result: launch.Result, findings: list[Finding], ending: Ending) -> None:
    from windtunnel.reports import json as json_report

    click.echo(json_report.render_run(merge(result.traces or [Trace()]), findings, ending), nl=False)


def _show(result: launch.Result, findings: list[Finding], code: int, options: Json) -> None:
    from windtunnel.reports.text import show

    if not result.traces:
        if not result.lost:
            _say(_nothing(code, options, result.shadows))
        return
    if len(result.traces) > 1 and "played" not in result.traces[0].facts:
        _say(f"{len(result.traces)} processes used GPUs; the report is of all of them")
    show(merge(result.traces), findings, verbose=options["verbose"])


def _missed(result: launch.Result, faults: Sequence[str]) -> list[str]:
    """A sentence for each fault that no process met, so that a test of recovery does not pass for want of a fault."""
    met = {dict(note.detail).get("fault") for trace in result.traces for note in trace.notes}
    where = "no process came to its rank, step, operator or time"
    return [f"the fault {text!r} never happened: {where}" for text in faults if result.traces and text not in met]


def _nothing(code: int, options: Json, shadows: list[str]) -> str:
    if shadows:
        return f"no report: {'; '.join(shadows)}, which is not that framework: rename the file"
    if code > 128:
        return f"no report: signal {code - 128} ended the program, and no process of it left a trace of work on a GPU"
    if options["gpus"] == "0":
        return "no report: with `--gpus 0` the program had no GPU"
    unreached = "; Pythons that are started with -E, -I or -S are not reached" if options["no_python"] else ""
    return f"no report: the program did nothing on a GPU (no process of it imported torch and used a device{unreached})"


def _say(text: str) -> None:
    click.echo(f"windtunnel: {foreign.line(text)}", err=True)
