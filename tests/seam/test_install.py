"""Beginning and ending: everything that is replaced is put back by identity."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
import types
import weakref
from typing import Any

import pytest
import torch
import torch.cuda.comm
import torch.nn.parallel.comm
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as entered_modes

import windtunnel
from windtunnel import session
from windtunnel.errors import InstallError, UnknownGpuError, UsageError
from windtunnel.seam.patching import Patches
from windtunnel.seam.torch import install
from windtunnel.seam.torch.state.notes import Notes

MODULES = (
    torch, torch._C, torch._C._nn, torch.cuda, torch.cuda.memory, torch.cuda.streams, torch.cuda.random,
    torch.cuda.graphs, torch.autograd, torch.autograd.graph,
    torch.cuda.comm, torch.cuda.nccl, torch.accelerator, torch.backends.cuda, torch.backends.cudnn, torch.version,
    torch.nn.functional, torch.nn.parallel.comm, torch.distributed, torch.distributed.distributed_c10d,
    torch.multiprocessing, torch.utils.data.dataloader, torch.serialization, torch.storage, torch.amp.autocast_mode,
    time, threading,
)  # fmt: skip
CLASSES = (torch.Tensor, torch.UntypedStorage, torch.TypedStorage, torch.autocast, threading.Thread, torch.nn.Module)


def names() -> dict[tuple[str, str], Any]:
    """Every attribute of the modules and classes that the seam touches."""
    found: dict[tuple[str, str], Any] = {}
    for owner in (*MODULES, *CLASSES):
        for name, value in list(vars(owner).items()):
            if not isinstance(value, types.ModuleType) and not name.startswith("__warning"):
                found[(getattr(owner, "__name__", str(owner)), name)] = value
    return found


def use_a_lot() -> None:
    x = torch.randn(4, 4, device="cuda", requires_grad=True)
    with torch.autocast("cuda"):
        (x @ x).float().sum().backward()
    with torch.cuda.stream(torch.cuda.Stream()):
        x.detach().add_(1)
    torch.cuda.synchronize()
    thread = threading.Thread(target=lambda: torch.ones(2, device="cuda:1").sum().item())
    thread.start()
    thread.join()


def test_everything_is_put_back_by_identity() -> None:
    torch.cuda.is_available()
    with windtunnel.emulate("2xV100"):
        pass
    before = names()
    with windtunnel.emulate("2xV100"):
        use_a_lot()
        assert torch.cuda.is_available()
    assert differences(before) == set()


def differences(before: dict[tuple[str, str], Any]) -> set[tuple[str, str]]:
    """The attributes that are not what they were."""
    after = names()
    return {key for key in before.keys() | after.keys() if before.get(key, after) is not after.get(key, before)}


class Fails(Patches):
    """Replaces so many names, then fails as Ctrl-C or a fault in the middle would."""

    left = 0

    def apply(self, patches: Any) -> None:
        """Replace one after the other."""
        for patch in patches:
            if Fails.left == 0:
                raise KeyboardInterrupt
            Fails.left -= 1
            super().apply([patch])


def test_a_beginning_that_fails_anywhere_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with windtunnel.emulate("V100") as emulated:
        replaced = len([*emulated._installations[0].patches])
    before = names()
    monkeypatch.setattr(install, "Patches", Fails)
    monkeypatch.setattr(session, "Patches", Fails)
    for number in [*range(0, replaced, 7), replaced - 1, replaced, replaced + 5]:  # the last: in what no framework owns
        Fails.left = number
        with pytest.raises(KeyboardInterrupt), windtunnel.emulate("V100"):
            pass
        assert Fails.left == 0
        assert not install.ACTIVE
        assert not entered_modes()
    assert differences(before) == set()


@pytest.mark.parametrize("step", ["composites", "notes", "hook", "seed"])
def test_a_step_after_the_replacements_that_fails_leaves_nothing(monkeypatch, step: str) -> None:
    owner, name = {
        "composites": (install.composites.Composites, "register"),
        "notes": (Notes, "begin"),
        "hook": (install.import_hook, "hook"),
        "seed": (session, "seed_all"),
    }[step]
    before = names()

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, fail)
        with pytest.raises(ZeroDivisionError):
            windtunnel.emulate("V100").__enter__()
    assert differences(before) == set()
    with windtunnel.emulate("V100"):
        assert torch.ones(2, device="cuda").sum().item() == 2


def test_ctrl_c_waits_until_the_beginning_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    before = names()
    begin = Notes.begin

    def interrupted(notes: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        begin(notes)

    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Notes, "begin", interrupted)
    with pytest.raises(KeyboardInterrupt), windtunnel.emulate("V100"):
        pass
    assert differences(before) == set()
    assert signal.getsignal(signal.SIGINT) is handler


def block(**options: Any) -> list[weakref.ref[Any]]:
    """One emulation that was used, as what should die with it."""
    with windtunnel.emulate("2xV100", **options) as session:
        use_a_lot()
        torch.fft.fft(torch.ones(8, device="cuda"))
        torch.cuda.get_device_properties(0)
        parts = (install.ACTIVE[-1], session.machine, session.trace, session)
        return [weakref.ref(part) for part in parts]


@pytest.mark.parametrize("options", [{}, {"memory_history": True}, {"async_copies": "stale"}], ids=str)
def test_nothing_keeps_an_ended_emulation_alive(options: dict[str, Any]) -> None:
    ended = block(**options)
    gc.collect()
    assert [reference() for reference in ended] == [None] * 4


def test_blocks_do_not_add_up() -> None:
    def count() -> int:
        gc.collect()
        return len(gc.get_objects())

    def work() -> None:
        with windtunnel.emulate("V100"):
            x = torch.ones(3, device="cuda")
            for _ in range(100):
                x.add_(1)

    work()
    work()
    before = count()
    for _ in range(10):
        work()
    assert count() - before < 100


def test_a_module_imported_meanwhile_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("imported_meanwhile")
    with windtunnel.emulate("V100"):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        vars(module).update(sleep=time.sleep, Stream=torch.cuda.Stream, raw=torch._C._cuda_getCurrentRawStream)
        raw = module.raw
    assert (module.sleep, module.Stream) == (time.sleep, torch.cuda.Stream)
    assert module.raw is not raw
    with windtunnel.emulate("V100"):
        assert module.raw(0) == torch._C._cuda_getCurrentRawStream(0)


def test_a_thread_that_outlives_its_emulation_goes_on_without_gpus() -> None:
    stop, steps, failed = threading.Event(), [0], []

    def work() -> None:
        x = torch.ones(4, 4, device="cuda")
        while not stop.is_set():
            x = (x @ x / 4).relu()
            steps[0] += 1
        try:
            torch.ones(2, device="cuda")
        except (AssertionError, RuntimeError) as error:
            failed.append(str(error))
        failed.append(x.sum().item())

    def until(number: int) -> None:
        while steps[0] < number and thread.is_alive():
            time.sleep(0.001)

    thread = threading.Thread(target=work)
    with windtunnel.emulate("V100", clock="real"):
        thread.start()
        until(20)
    until(steps[0] + 20)
    stop.set()
    thread.join()
    assert "CUDA" in failed[0]
    assert failed[1:] == [16.0]


def test_after_the_end_there_is_no_gpu() -> None:
    with windtunnel.emulate("2xV100"):
        assert torch.cuda.device_count() == 2
    assert torch.cuda.device_count() == 0
    assert torch.ones(2).device.type == "cpu"


def test_an_error_inside_ends_the_emulation() -> None:
    with pytest.raises(ZeroDivisionError), windtunnel.emulate("V100"):
        1 / 0  # noqa: B018
    assert not torch.cuda.is_available()


def test_emulations_follow_each_other() -> None:
    for spec, count in (("V100", 1), ("4xH100", 4), ("2", 2)):
        with windtunnel.emulate(spec):
            assert torch.cuda.device_count() == count
            assert torch.ones(1, device=f"cuda:{count - 1}").item() == 1.0


def test_one_inside_another_is_refused() -> None:
    with windtunnel.emulate("V100"), pytest.raises(InstallError, match="already active in this process"):
        windtunnel.emulate("V100").__enter__()


def test_bad_options_are_refused_in_a_sentence() -> None:
    with pytest.raises(UnknownGpuError, match="no GPU is called"):
        windtunnel.emulate("2xV1000").__enter__()
    with pytest.raises(UsageError, match="there is no option 'speed'"):
        windtunnel.emulate("V100", speed=3).__enter__()
    with pytest.raises(UsageError, match="clock cannot be 'fast': it is 'virtual' or 'real'"):
        windtunnel.emulate("V100", clock="fast").__enter__()
    assert not torch.cuda.is_available()


def test_a_cuda_build_says_what_it_was_compiled_with(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with windtunnel.emulate("V100"):
        assert torch.version.cuda == "13.0"


def test_a_cpu_build_says_the_emulated_cuda(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with windtunnel.emulate("V100", cuda_version="12.4"):
        assert torch.version.cuda == "12.4"


def test_a_gradient_that_was_registered_under_cudas_key_before_counts_as_well() -> None:
    class TenTimes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            with torch._C._AutoDispatchBelowAutograd():
                return torch.ops.us_earlier.f(x)

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return grad * 10

    with torch.library._scoped_library("us_earlier", "DEF") as library:
        library.define("f(Tensor x) -> Tensor")
        library.impl("f", lambda x: x + 1, "CompositeExplicitAutograd")
        library.impl("f", lambda x: TenTimes.apply(x), "AutogradCUDA")
        with windtunnel.emulate():
            x = torch.ones(2, device="cuda", requires_grad=True)
            torch.ops.us_earlier.f(x).sum().backward()
            assert x.grad.tolist() == [10, 10]
        assert torch.ops.us_earlier.f(torch.ones(1)).item() == 2


def test_an_emulation_that_nobody_leaves_ends_with_python() -> None:
    program = (
        "import torch, windtunnel\n"
        "entered = windtunnel.emulate(gpus=1)\n"
        "entered.__enter__()\n"
        "print(torch.ones(2, device='cuda').sum().item())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("2.0\n", "")
