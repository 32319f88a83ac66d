"""Which folder of src/windtunnel may import which; docs/architecture.md says what lives in each."""

from source import Source, sources

VOCABULARY = {"vocabulary", "torch", "jax", "tensorflow", "mxnet"}
CORE = {"trace", "operators", "gpus", "networks", "cost", "machine", "checks", "reports", "ranks", "faults"}
BELOW_SESSION = CORE | {
    "hosts",
    "compiler",
    "ptx",
    "seam",
    "analysis",
    "measure",
    "settings",
    "live",
    "departure",
    "libraries",
    "described",
    "options",
}
COMMANDS = (
    BELOW_SESSION
    | VOCABULARY
    | {
        "judgement",
        "session",
        "launch",
        "train",
        "experiments",
        "doctor",
        "cli",
        "foreign",
        "planning",
        "single_kernel",
        "cluster",
        "agent",
    }
)

MAY_IMPORT: dict[str, set[str]] = {
    "__init__": {"options", "session", "planning", "notebook", "described"},
    "errors": set(),
    "foreign": set(),
    "options": set(),
    "import_hook": set(),
    "folders": set(),
    "arrivals": {"folders"},
    "exits": set(),
    "manual": set(),
    "described": {"operators"},
    "libraries": VOCABULARY | {"train", "described"},
    "trace": {"foreign"},
    "gpus": {"foreign"},
    "hosts": {"foreign"},
    "networks": {"foreign"},
    "operators": {"trace"},
    "cost": {"trace", "operators", "gpus", "networks", "foreign"},
    "machine": {"trace", "operators", "gpus", "networks", "cost"},
    "ranks": {"foreign", "trace"},
    "faults": set(),
    "checks": {"trace", "operators", "ranks"},
    "reports": {"trace", "checks", "gpus"},
    "compiler": {"folders"},
    "ptx": {"compiler", "folders"},
    "seam": CORE - {"checks", "reports"}
    | {"import_hook", "arrivals", "folders", "compiler", "ptx", "exits", "options"},
    "single_kernel": {"compiler", "cost", "gpus", "ptx", "seam"},
    "analysis": {"foreign", "machine", "cost", "trace", "operators", "gpus", "networks"},
    "measure": {"foreign", "trace", "operators", "gpus", "analysis", "machine"},
    "settings": {"foreign", "faults"},
    "live": {"machine", "foreign"},
    "departure": {"trace", "seam", "exits"},
    "guard": set(),
    "variables": set(),
    "version": set(),
    "vocabulary": set(),
    "nested": set(),
    "torch": {"vocabulary", "nested"},
    "jax": {"vocabulary"},
    "tensorflow": {"vocabulary"},
    "mxnet": {"vocabulary"},
    "train": VOCABULARY | {"nested"},
    "experiments": VOCABULARY | {"train", "reports", "gpus", "trace"},
    "judgement": CORE | {"analysis"},
    "session": BELOW_SESSION | {"import_hook", "judgement"},
    "launch": BELOW_SESSION | {"session", "import_hook", "foreign", "guard"},
    "agent": {"ranks"},
    "cluster": {"launch", "ranks", "trace", "foreign", "reports"},
    "planning": {
        "checks",
        "launch",
        "agent",
        "cluster",
        "ranks",
        "guard",
        "folders",
        "analysis",
        "reports",
        "gpus",
        "trace",
        "foreign",
    },
    "doctor": BELOW_SESSION | {"session", "launch"},
    "pytest_plugin": BELOW_SESSION
    | VOCABULARY
    | {"session", "launch", "shim", "import_hook", "pytest_findings", "pytest_tracebacks"},
    "pytest_tracebacks": set(),
    "pytest_findings": {"trace", "checks", "reports", "launch", "session"},
    "forkserver": {"trace", "seam", "session", "import_hook"},
    "shim": {"session", "measure", "import_hook", "arrivals", "exits", "forkserver", "libraries"},
    "cli": COMMANDS | {"shim", "manual"},
    "notebook": BELOW_SESSION | {"session", "launch", "cli", "import_hook"},
    "examples": set(),
    "demo": {"cli", "examples", "reports"},
    "__main__": {"cli"},
}
FRAMEWORKS = {"torch", "jax", "jaxlib", "flax", "optax", "tensorflow", "mxnet"}
MAY_USE_TORCH = (
    "seam/torch/",
    "torch.py",
    "nested.py",
    "measure/",
    "train/",
    "experiments/",
    "libraries/",
    "described.py",
)
OTHER_FRAMEWORKS = {
    place.format(name): {name, *more}
    for place in ("{}.py", "seam/{}/", "train/frameworks/{}.py")
    for name, more in {"jax": {"jaxlib", "flax", "optax"}, "tensorflow": set(), "mxnet": set()}.items()
}
"""Files and folders, and the frameworks that they may import."""
PURE = {"time", "random", "os", "threading"}


def test_a_layer_imports_only_what_the_table_allows() -> None:
    wrong = [
        f"{source}:{line} imports {name}"
        for source in sources()
        for line, name in source.imports()
        if name.startswith("windtunnel.")
        and name.split(".")[1] not in MAY_IMPORT[source.layer] | {source.layer, "errors", "variables", "version"}
    ]
    assert not wrong


def may_use(source: Source) -> set[str]:
    """The frameworks that a file may import."""
    own = next((packages for place, packages in OTHER_FRAMEWORKS.items() if str(source).startswith(place)), set[str]())
    allowed = FRAMEWORKS if str(source).startswith("libraries/") else own
    if str(source).startswith(MAY_USE_TORCH) and not str(source).startswith("train/frameworks/"):
        allowed = allowed | {"torch"}
    return allowed


def imported_from(source: Source, packages: set[str]) -> set[str]:
    """Those of the packages that a file imports."""
    return {name.split(".")[0] for _, name in source.imports()} & packages


def test_frameworks_are_imported_only_where_they_belong() -> None:
    assert not [str(source) for source in sources() if not imported_from(source, FRAMEWORKS) <= may_use(source)]


def test_the_machine_and_the_trace_know_no_clock_no_chance_no_system() -> None:
    assert not [str(s) for s in sources() if s.layer in {"machine", "trace"} and imported_from(s, PURE)]
