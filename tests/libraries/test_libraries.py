"""Stand-ins for libraries: who wins, what a run says, how one is switched off, what `importlib.metadata` knows."""

import os
import subprocess
import sys

import pytest

from windtunnel import libraries
from windtunnel.errors import MissingNameError, UsageError
from windtunnel.session import options_of

FIRST_LINE = "from d2l import torch as d2l\n"


@pytest.fixture
def run(tmp_path):
    """A program's text under `windtunnel run`, with these options."""

    def run(source, *options, **environment):
        script = tmp_path / "program.py"
        script.write_text(source, encoding="utf-8")
        return subprocess.run(
            [sys.executable, "-m", "windtunnel", "run", "--gpus", "2xV100", *options, str(script)],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


def test_the_folder_is_the_registry():
    assert "d2l" in libraries.names()
    assert str(libraries.find("d2l")) == "d2l 1.0.3"
    assert libraries.find("numpy") is None
    for name in libraries.names():
        assert libraries.find(name).version, f"{name} does not say which version it answers for"


def test_only_libraries_with_a_stand_in_can_be_left_out():
    assert options_of({"without": ["d2l"]}).without == ("d2l",)
    with pytest.raises(UsageError, match=r"there is no stand-in for .numpy. to leave out"):
        options_of({"without": ["numpy"]})


def test_a_name_that_the_stand_in_has_not():
    with pytest.raises(
        MissingNameError, match=r"d2l\.torch\.train_ch6 is not in windtunnel's stand-in for d2l 1\.0\.3"
    ):
        libraries.refuse("d2l 1.0.3", "d2l.torch", "train_ch6")
    with pytest.raises(MissingNameError, match=r"leave it out, or the stand-in \(--without apex\)$"):
        libraries.refuse("apex 0.1", "apex.optimizers", "FusedLAMB")
    assert issubclass(MissingNameError, AttributeError)


def test_the_page_of_them_is_up_to_date():
    command = [sys.executable, "-m", "tools.docs.library_pages", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_one_that_is_only_looked_for_is_not_said_to_have_run(run):
    look = "import importlib.metadata, importlib.util\nprint(importlib.util.find_spec('flash_attn') is not None)\n"
    look += (
        "print(importlib.metadata.version('flash-attn'), importlib.metadata.packages_distributions()['flash_attn'])\n"
    )
    done = run("import torch\n" + look + "torch.ones(3, device='cuda')\n")
    assert done.stdout == "True\n2.8.3 ['flash_attn']\n", done.stderr
    assert "stand-in" not in done.stderr


@pytest.mark.long
def test_one_that_only_a_library_imports_is_said_once_it_runs(run, tmp_path):
    """accelerate imports transformer_engine wherever it finds it, and diffusers flash_attn and xformers."""
    package = tmp_path / "site-packages" / "looking"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import flash_attn, transformer_engine\n")
    source = "import sys\nsys.path.append('site-packages')\nimport torch, looking\ntorch.ones(3, device='cuda')\n"
    source += "for _ in range(200):\n    torch.ones(3, device='cuda') + 1\n"  # after these, few lines are looked up
    uses = "q = torch.ones(1, 4, 2, 8, device='cuda', dtype=torch.half)\nlooking.flash_attn.flash_attn_func(q, q, q)\n"
    assert "stand-in" not in run(source).stderr
    done = run(source + uses, "--gpus", "A100")
    assert done.stderr.count("stand-in for part of") == 1
    assert "flash_attn is not installed" in done.stderr


@pytest.mark.long
def test_a_run_says_once_that_a_stand_in_answered(run):
    says = 'import importlib.metadata\nprint(d2l.try_gpu(1), d2l.num_gpus(), importlib.metadata.version("d2l"))\n'
    done = run(FIRST_LINE + "import torch\nx = torch.ones(3, device=d2l.try_gpu())\n" + says)
    assert done.stdout == "cuda:1 2 1.0.3\n", done.stderr
    assert done.stderr.count("d2l is not installed: the program ran with windtunnel's stand-in") == 1


@pytest.mark.long
def test_one_that_is_installed_wins(run, tmp_path):
    (tmp_path / "d2l").mkdir()
    (tmp_path / "d2l" / "__init__.py").write_text("")
    (tmp_path / "d2l" / "torch.py").write_text("real = True\n")
    done = run(FIRST_LINE + "import torch\ntorch.ones(3, device='cuda')\nprint(d2l.real)\n")
    assert done.stdout == "True\n", done.stderr
    assert "stand-in" not in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("options", [[], ["--without", "xformers"]])
def test_one_whose_kernels_are_a_binary_for_gpus_gives_way(run, tmp_path, options):
    installed = tmp_path / "xformers"
    installed.mkdir()
    (installed / "__init__.py").write_text("__version__ = '0.0.35'\n")
    (installed / "_C.so").write_bytes(b"\x7fELF" + b"\0" * 60 + b"libtorch_cuda.so\0")
    folder = tmp_path / "xformers-0.0.35.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: xformers\nVersion: 0.0.35\n")
    (folder / "RECORD").write_text("xformers/_C.so,,\n")
    done = run(
        "import torch, xformers\nfrom importlib.metadata import version\n"
        "print(xformers.__version__, version('xformers'))\n"
        "torch.ones(2, device='cuda')\n", *options, PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
    )  # fmt: skip
    assert done.stdout == f"{'0.0.35' if options else '0.0.31'} 0.0.35\n", done.stderr
    said = (
        "xformers 0.0.35 has its kernels in a binary for GPUs: the program ran with windtunnel's stand-in for part of"
    )
    assert done.stderr.count(said) == (0 if options else 1)


@pytest.mark.long
@pytest.mark.parametrize(("options", "environment"), [(["--without", "d2l"], {}), ([], {"WINDTUNNEL_WITHOUT": "d2l"})])
def test_one_that_is_left_out_is_missing(run, options, environment):
    done = run(FIRST_LINE, *options, **environment)
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'd2l'" in done.stderr


@pytest.mark.long
def test_what_it_lacks_is_refused_in_one_sentence(run):
    done = run(FIRST_LINE + 'print(hasattr(d2l, "train_ch6"))\nd2l.load_data_fashion_mnist(256)\n')
    assert done.stdout == "False\n"
    assert done.returncode == 66
    assert "install d2l itself, which is then used (pip install --no-deps d2l==1.0.3)" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(("source", "name"), [("from apex import amp", "apex.amp"),
                                              ("import apex.parallel", "apex.parallel")])  # fmt: skip
def test_what_is_imported_and_lacks_is_refused_in_one_sentence(run, source, name):
    done = run(f"import torch\ntry:\n    {source}\nexcept ImportError:\n    print('none')\n{source}\n")
    assert (done.stdout, done.returncode) == ("none\n", 66)
    assert done.stderr.count(f"windtunnel: {name} is not in windtunnel's stand-in for apex 0.1: leave it out") == 1


@pytest.mark.long
def test_pytest_offers_them_too(tmp_path):
    (tmp_path / "test_program.py").write_text(
        FIRST_LINE + "def test_device():\n    assert str(d2l.try_gpu(1)) == 'cuda:1'\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--gpus", "2xV100"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("stand-in for part of d2l 1.0.3") == 1


def test_a_notebook_offers_them_while_gpus_are_emulated(tmp_path):
    program = (
        "import windtunnel\nwindtunnel.start('2xV100')\n"
        + FIRST_LINE
        + "print(d2l.try_gpu(1))\nwindtunnel.stop()\nimport sys\n"
        + "print(any(type(one).__name__ == 'Finder' for one in sys.meta_path))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "cuda:1\nFalse\n", done.stderr
    assert done.stderr.count("stand-in for part of d2l 1.0.3") == 1


def test_without_an_emulation_there_is_none():
    done = subprocess.run([sys.executable, "-c", FIRST_LINE], capture_output=True, text=True, timeout=300, check=False)
    assert "No module named 'd2l'" in done.stderr


@pytest.mark.long
def test_a_program_that_a_librarys_binary_ends_is_refused_in_one_sentence(run, tmp_path):
    package = tmp_path / "site-packages" / "kernels"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .load import get_kernel\n")
    (package / "load.py").write_text("def get_kernel(name):\n    raise ImportError('libcublas.so.13: no such file')\n")
    done = run(
        "import sys\nsys.path.insert(0, 'site-packages')\nimport torch\ntorch.ones(2, device='cuda')\n"
        "from kernels import get_kernel\nget_kernel('kernels-community/activation')\n"
    )
    assert done.returncode == 66, done.stderr
    assert done.stderr.count("windtunnel: a kernel of the Hugging Face Hub is a binary for a GPU") == 1
    assert "ImportError: libcublas.so.13: no such file" in done.stderr
