"""The private names of PyTorch that the seam uses are those that `windtunnel doctor` and every emulation check."""

import ast
from collections.abc import Iterator

from source import PACKAGE, Source, sources

SEAM = [source for source in sources() if str(source).startswith("seam/torch/")]
MADE = (
    "torch._C._cuda_", "torch._C._nccl_", "torch._C._accelerator_", "torch._C._host_emptyCache",
    "torch._C._distributed_c10d._dump_nccl_trace", "torch._C._distributed_c10d._hash_tensors",
    "torch.cuda._get_device_properties", "torch.UntypedStorage._wt", "torch.UntypedStorage._release_ipc_counter",
)  # fmt: skip
"""What the seam brings where a build for the CPU has it not."""


def listed() -> set[str]:
    """The names of `hooks.py`."""
    tree = ast.parse((PACKAGE / "seam/torch/requirements.py").read_text(encoding="utf-8"))
    tables = [node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)]
    return {name for table in tables for names in ast.literal_eval(table).values() for name in names.split()}


def is_private(part: str) -> bool:
    return part.startswith("_") and not part.endswith("__")


def aliases(source: Source) -> dict[str, str]:
    """What a file calls parts of PyTorch, by imports and by assignments."""
    found = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    found[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and (path := dotted(node.value, found)):
            found |= {target.id: path for target in node.targets if isinstance(target, ast.Name)}
    return found


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """The path of a.b.c in PyTorch; "" where it is none."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return ".".join([names[node.id], *parts]) if isinstance(node, ast.Name) and node.id in names else ""


def for_types(source: Source) -> set[ast.AST]:
    """What of a file only a type checker reads: annotations, which `__future__` leaves alone, and its imports."""
    roots: list[ast.AST | None] = []
    for node in ast.walk(source.tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                roots += node.body
            case ast.AnnAssign() | ast.arg():
                roots.append(node.annotation)
            case ast.FunctionDef():
                roots.append(node.returns)
    return {node for root in roots if root is not None for node in ast.walk(root)}


def used(source: Source) -> Iterator[tuple[int, str]]:
    """(line, path) of the private names of PyTorch that a file reads or replaces when it runs.

    Those that it asks for are left out.
    """
    names = aliases(source)
    unread = for_types(source) if "from __future__ import annotations" in source.text else set()
    asked = set()
    for node in ast.walk(source.tree):
        match node:
            case ast.Call(func=ast.Name(id="hasattr"), args=[_, ast.Constant(value=name)]):
                asked.add(name)
    for node in ast.walk(source.tree):
        path = ""
        if node in unread:
            continue
        match node:
            case ast.Attribute():
                path = dotted(node, names)
            case ast.Call(func=ast.Name(id="Patch"), args=[owner, ast.Constant(value=name), *_]):
                path = f"{dotted(owner, names)}.{name}"
        if path.startswith("torch") and any(map(is_private, path.split("."))) and not asked & set(path.split(".")):
            yield node.lineno, path
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node not in unread and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                if any(map(is_private, f"{node.module}.{alias.name}".split("."))):
                    yield node.lineno, f"{node.module}.{alias.name}"


def is_listed(path: str, known: set[str]) -> bool:
    """Whether the list has the path, or the part of it that ends with or after its last private name."""
    parts = path.split(".")
    private = max(at for at, part in enumerate(parts) if is_private(part))
    begins = {".".join(parts[:end]) for end in range(private + 1, len(parts) + 1)}
    return bool(begins & known) or any(name.startswith(f"{path}.") for name in known)


def test_every_private_name_is_checked_before_it_is_needed() -> None:
    known = listed()
    paths = {path for source in SEAM for _, path in used(source) if not path.startswith(MADE)}
    missing = {path for path in paths if not is_listed(path, known)}
    assert not missing, f"add to src/windtunnel/seam/torch/requirements.py: {', '.join(sorted(missing))}"


SAMPLE = """
from __future__ import annotations
import torch
from torch._C._profiler import gather_traceback
C = torch._C
C._one()
torch.cuda._two.three
def f():
    if hasattr(C, "_asked"):
        C._asked()
patches = [Patch(torch.cuda, "_four", f)]
torch.nn.Module.__init__
if TYPE_CHECKING:
    from torch._C import _Five
def g(x: torch._C._Six) -> torch._C._Seven: ...
"""


def test_a_private_name_would_be_seen() -> None:
    found = {path for _, path in used(Source(PACKAGE / "sample.py", SAMPLE))}
    assert found == {
        "torch._C",
        "torch._C._profiler.gather_traceback",
        "torch._C._one",
        "torch.cuda._two",
        "torch.cuda._two.three",
        "torch.cuda._four",
    }
    assert not is_listed("torch._C._one", {"torch._C._on", "torch._C"})
    assert is_listed("torch._C._one.two", {"torch._C._one"})
    assert is_listed("torch._C", {"torch._C._one"})
