"""`windtunnel smi`: nvidia-smi for the emulated GPUs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import datetime

import click

from windtunnel import gpus, live, variables
from windtunnel.cli._options import cuda_version_option, gpus_option
from windtunnel.gpus import versions
from windtunnel.machine.device import uuid_of
from windtunnel.reports import smi
from windtunnel.reports.parts.smi_data import SmiHost, SmiProcess
from windtunnel.trace.plain import Json


@click.command("smi", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True})
@gpus_option
@cuda_version_option
@click.argument("arguments", metavar="[NVIDIA-SMI OPTIONS]", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(context: click.Context, gpus: str | None, cuda_version: str | None, arguments: tuple[str, ...]) -> int:
    """Print what nvidia-smi would print for the emulated GPUs.

    Takes nvidia-smi's own options: -L, -i, --query-gpu, --query-compute-apps, --format. Under `windtunnel run` it shows
    the GPUs of that run and the memory that its processes use now; `nvidia-smi` runs this command there.

    \b
    windtunnel smi --gpus 4xV100
    windtunnel smi --gpus H100 --query-gpu=name,memory.total --format=csv
    """
    running: Json = json.loads(os.environ.get(variables.OPTIONS) or "{}")

    def chosen(name: str, value: str | None) -> str | None:
        asked = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        return value if asked or variables.OPTIONS not in os.environ else running.get(name)

    torch = versions.installed_torch() if variables.OPTIONS in os.environ else None
    text, code = smi.main(arguments, host(chosen("gpus", gpus) or "2", chosen("cuda_version", cuda_version), torch))
    click.echo(text, nl=False)
    return code


def host(spec: str, cuda_version: str | None, torch: str | None) -> SmiHost:
    """The emulated machine as nvidia-smi sees it now, beside programs of this version of PyTorch (None: of none)."""
    models = gpus.parse(spec)
    cuda = versions.parse_version(cuda_version) if cuda_version else versions.driver_cuda(models, torch)
    driver = versions.driver_version(cuda)
    folder = os.environ.get(variables.FOLDER)
    users = live.processes(folder) if folder else []
    errors = live.errors(folder) if folder else {}
    devices = []
    for index, model in enumerate(models):
        processes = tuple(
            SmiProcess(user.pid, user.name, user.used_bytes[index] >> 20)
            for user in users
            if index < len(user.used_bytes) and user.used_bytes[index]
        )
        used = sum(process.used_mib for process in processes) << 20
        if processes:
            used += versions.process_gap_bytes()
        device = smi.device_of(model, index, uuid_of(model.key, index), driver, used, devices=len(models))
        devices.append(replace(device, processes=processes, xid=errors.get(index, 0)))
    now = datetime.now()
    return SmiHost(
        tuple(devices),
        driver,
        ".".join(map(str, cuda)),
        now.strftime("%a %b %e %H:%M:%S %Y"),
        now.strftime("%Y/%m/%d %H:%M:%S.%f")[:-3],
    )
