"""Notebooks executed as Jupyter executes them, by nbclient; shared by the tests of every framework."""

import os
import re
import sys
from pathlib import Path

import listings
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Kernel(KernelManager):
    """A kernel of the Python that runs the tests, whichever kernels are installed on this machine."""

    @property
    def kernel_spec(self):
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="python", language="python")


def client(folder, *cells, allow_errors=False):
    """What executes a notebook of these cells. The kernel works in `folder`, and ends with the notebook."""
    made = NotebookClient(
        new_notebook(cells=[new_code_cell(text) for text in cells]),
        timeout=240,
        km=Kernel(),
        allow_errors=allow_errors,
        shutdown_kernel="immediate",
        resources={"metadata": {"path": str(folder)}},
    )
    made.owns_km = True
    return made


def execute(folder, *cells, allow_errors=False, **environment):
    """The executed notebook's cells."""
    run = client(folder, *cells, allow_errors=allow_errors)
    run.execute(env={**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", **environment})
    return run.nb.cells


def printed(cell):
    """What a cell shows on stdout and as its value, as text."""
    return "".join(
        output.text if output.output_type == "stream" else output.get("data", {}).get("text/plain", "") + "\n"
        for output in cell.outputs
        if output.output_type != "error" and output.get("name") != "stderr"
    )


def error(cell):
    """What a cell raised, as (class, text, traceback); None where it raised nothing."""
    for output in cell.outputs:
        if output.output_type == "error":
            return output.ename, output.evalue, ANSI.sub("", "\n".join(output.traceback))
    return None


def html(cell):
    """The HTML that a cell shows."""
    return "".join(output.get("data", {}).get("text/html", "") for output in cell.outputs)


def listing(folder, framework, name, *options, **environment):
    """What a listing of the documents prints as a notebook on two emulated V100, cell by cell."""
    program = listings.path(framework, name)
    texts = []
    for part in (program.with_suffix(".prelude.py"), program, program.with_suffix(".after.py")):
        if part == program or part.exists():
            texts += re.split(r"^# %%.*\n", part.read_text(encoding="utf-8"), flags=re.MULTILINE)
    begin = ["%load_ext windtunnel", " ".join(["%gpus 2xV100", *options])]
    where = f"import sys; sys.path.insert(0, {str(program.parent)!r})"
    first, second, _, *shown = execute(
        folder, *begin, where, *texts, PYTHONPATH=str(Path(__file__).parent), **environment
    )
    assert printed(second).startswith("EMULATED: cuda:0 Tesla V100")
    assert first.outputs == []
    return "".join(map(printed, shown))
