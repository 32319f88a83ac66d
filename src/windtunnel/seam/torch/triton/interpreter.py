"""Running a kernel's programs one after the other: Triton's interpreter, with memory watched and a GPU's arithmetic.

The interpreter is Triton's own (triton/runtime/interpreter.py). In its place stand here: where an access goes (`Memory`
decides), products and conversions of types that numpy has not, reductions, and the rewriting of the source.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType, SimpleNamespace
from typing import NoReturn

import numpy as np

from windtunnel.errors import UnsupportedError
from windtunnel.seam.signatures import refuse, signature_of, takes_all
from windtunnel.seam.torch.triton import rewriting, values
from windtunnel.seam.torch.triton.accesses import Accesses
from windtunnel.seam.torch.triton.arithmetic import Arithmetic
from windtunnel.seam.torch.triton.base import UNSUPPORTED, ComputedWork, JITFunction
from windtunnel.seam.torch.triton.debugging import Debugging
from windtunnel.seam.torch.triton.memory import AssertedError, IllegalAddressError, LaunchMemory
from windtunnel.seam.torch.triton.reductions import Reductions

LOCK = threading.RLock()
"""The interpreter patches Triton's language, which is one for all threads."""
LIBDEVICE = "triton.language.extra.libdevice"
MISSING = object()


class Interpreter(Accesses, Arithmetic, Debugging, Reductions):
    """Triton's interpreter, prepared once; `running` is the memory and work of the launch that runs now."""

    def __init__(self) -> None:
        super().__init__()
        from triton import knobs
        from triton.backends.nvidia.compiler import min_dot_size
        from triton.language.extra import libdevice
        from triton.language.extra.cuda import libdevice as cuda_libdevice

        self._options = vars(knobs.runtime)
        self._libdevice, self._cuda_libdevice = libdevice, cuda_libdevice
        self._min_dot_size = min_dot_size
        self._functions: dict[int, tuple[JITFunction, bool, Callable[..., object], dict[str, object]]] = {}
        self._fresh: set[int] = set()
        self._codes: dict[int, CodeType] = {}  # by identity: a code's hash is computed from all of it
        self._patches: list[tuple[object, str, object, object]] = []
        self.debug = False
        self.helpers = SimpleNamespace(
            logical_and=self._logical_and,
            logical_or=self._logical_or,
            logical_not=self._logical_not,
            asserts=self._asserts,
            truth=self._truth,
        )

    # ------------------------------------------------------------------ a launch

    def run(
        self,
        kernel: JITFunction,
        arguments: Mapping[str, object],
        memory: LaunchMemory,
        grid: tuple[int, int, int],
        programs: Iterable[int],
        debug: bool,
    ) -> ComputedWork:
        """Run these programs of a grid, x first; `arguments` are a kernel's own, as `argument` makes them.

        Raises:
            UnsupportedError: the kernel uses what the interpreter has not.
        """
        self.memory, self.work, self.debug, self._spun = memory, ComputedWork(), debug, (0, 0)
        self._fresh.clear()
        with self._patched(), values.alone():
            try:
                function = self.function(kernel)
                self._builder.set_grid_dim(*grid)
                for number in programs:
                    memory.begin(number)
                    self._builder.set_grid_idx(
                        number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])
                    )
                    function(**arguments)
                    self.settle()
            except (AssertedError, IllegalAddressError):
                raise
            except (NotImplementedError, AttributeError) as error:
                raise self._refused(kernel, error) from error
            except Exception as error:
                self._locate(kernel, error)
                raise
            finally:
                self.settle()
                self.memory = None
        return self.work

    @property
    def running(self) -> bool:
        """Whether a kernel runs now, on this thread or another."""
        return self.memory is not None

    def _refused(self, kernel: JITFunction, error: NotImplementedError | AttributeError) -> Exception:
        text = str(error)
        if "InterpreterBuilder" not in text and not text.endswith(UNSUPPORTED):  # Triton's compiler says the same
            self._locate(kernel, error)
            return error
        what = text.removesuffix(UNSUPPORTED).strip()
        what = (
            text.rpartition("attribute ")[2].strip("'").removeprefix("create_")
            if "InterpreterBuilder" in text
            else what
        )
        return UnsupportedError(
            f"the Triton kernel {kernel.__name__!r} uses {what} ({self._place(error)}), which Triton's interpreter "
            "does not compute: write this part with Triton's other operations, or run it on a real GPU"
        )

    def _place(self, error: BaseException) -> str:
        found = "unknown line"
        trace = error.__traceback__
        while trace is not None:
            if id(trace.tb_frame.f_code) in self._codes:
                found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
            trace = trace.tb_next
        return found

    def _locate(self, kernel: JITFunction, error: BaseException) -> None:
        error.add_note(f"in the Triton kernel {kernel.__name__!r}, at {self._place(error)}")

    def line(self) -> tuple[str, int, str]:
        """The line of the program's kernels that runs: file, number, function."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if id(frame.f_code) in self._codes:
                return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
            frame = frame.f_back
        return "", 0, ""

    # ------------------------------------------------------------------ functions

    def function(self, kernel: JITFunction) -> Callable[..., object]:
        """A kernel, or a function that one calls, as a Python function."""
        known = self._functions.get(id(kernel))
        if known is None or known[1] != self.debug:
            known = self._functions[id(kernel)] = kernel, self.debug, *self._made(kernel)
        if id(kernel) not in self._fresh:
            self._fresh.add(id(kernel))
            self._name(kernel, known[3])
        return known[2]

    def _made(self, kernel: JITFunction) -> tuple[Callable[..., object], dict[str, object]]:
        file = kernel.fn.__code__.co_filename
        decorators = itertools.takewhile(lambda line: not line.strip().startswith("def "), kernel.raw_src)
        line = kernel.starting_line_number + sum(1 for _ in decorators)
        tree = rewriting.rewritten(kernel.parse(), line, self.debug)  # type: ignore[arg-type]
        namespace: dict[str, object] = {}
        self._name(kernel, namespace)
        found: dict[str, Callable[..., object]] = {}
        exec(compile(tree, file, "exec"), namespace, found)
        function = next(iter(found.values()))
        if not kernel.fn.__module__.startswith("triton."):
            code: CodeType = function.__code__
            self._codes[id(code)] = code
        return function, namespace

    def _name(self, kernel: JITFunction, namespace: dict[str, object]) -> None:
        """Bring a function's names up to date, libdevice's functions as CUDA has them."""
        namespace.clear()
        core = self._language.core
        namespace.update(print=core.device_print, min=core.builtin_min, max=core.builtin_max)
        namespace.update(kernel.get_capture_scope())
        namespace[rewriting.SEMANTIC] = self._semantic
        namespace[rewriting.HELPERS] = self.helpers
        for name, value in list(namespace.items()):
            if isinstance(value, FunctionType) and value.__module__ == LIBDEVICE:
                namespace[name] = getattr(self._libdevice, value.__name__)

    # ------------------------------------------------------------------ Triton's names

    @contextmanager
    def _patched(self) -> Iterator[None]:
        """Triton's language as the interpreter's, and the interpreter's memory and arithmetic as ours."""
        if not self._patches:
            self._patches = self._prepare()
        interpreted = self._options.get("interpret", MISSING)
        self._options["interpret"] = True
        options, self._builder.options = self._builder.options, self._chosen_options()
        floats = np.geterr()
        try:
            for owner, name, new, _ in self._patches:
                setattr(owner, name, new)
            np.seterr(all="ignore")
            yield
        finally:
            np.seterr(**floats)
            for owner, name, _, old in reversed(self._patches):
                if old is MISSING:
                    delattr(owner, name)
                else:
                    setattr(owner, name, old)
            self._builder.options = options
            if interpreted is MISSING:
                del self._options["interpret"]
            else:
                self._options["interpret"] = interpreted

    def _chosen_options(self) -> object:
        return self._module.InterpreterOptions(debug=self.debug, sanitize_overflow=self.debug)

    def _prepare(self) -> list[tuple[object, str, object, object]]:
        """Everything to replace while a kernel runs: owner, name, value, what stood there."""
        module, language, builder = self._module, self._language, self._builder
        names = SimpleNamespace(__globals__={"language": language, "core": language.core})
        scope = module._patch_lang(names)
        module._patch_builtin(self._cuda_libdevice, builder, scope)
        for name, value in list(vars(self._libdevice).items()):
            if isinstance(value, FunctionType) and hasattr(self._cuda_libdevice, name):
                scope.set_attr(self._libdevice, name, getattr(self._cuda_libdevice, name))
        kept = [(owner, name, getattr(owner, name), old) for owner, name, old in scope._changes]
        scope.restore()
        tensor = language.tensor
        own: list[tuple[object, str, object]] = []
        for owner in (language, language.core):
            own += [(owner, "reduce", self._reduce), (owner, "associative_scan", self._scan)]
            own.append((owner, "static_print", self._static_print))
        methods: dict[str, Callable[..., object]] = {"reduce": self._reduce, "associative_scan": self._scan}
        own += [(tensor, name, _as_method(function)) for name, function in methods.items()]
        for name, value in list(vars(tensor).items()):
            if isinstance(value, self._jit.JITCallable):
                own.append((tensor, name, self._method(value)))
        own.append((self._jit.JITFunction, "__call__", self._called()))
        own += [(builder, name, self._operation(name)) for name in OPERATIONS if hasattr(builder, name)]
        own += [(builder, name, self._operation(name)) for name in ADDED]
        watched = self.watching()
        own = [one for one in own if one[0] is not builder or one[1] not in watched]
        own += [(builder, name, operation) for name, operation in watched.items()]
        if not hasattr(builder, "create_dot_scaled"):  # before 3.8
            own += [(owner, "dot_scaled", _no_scaled_product) for owner in (language, language.core)]
        own.append((builder, "create_ptr_to_int", self._without_number))
        own.append((builder, "codegen_fns", {**builder.codegen_fns, "min_dot_size": self._min_dot_size(None)}))
        missing = self._module._MISSING
        return [
            *((owner, name, new, MISSING if old is missing else old) for owner, name, new, old in kept),
            *((owner, name, new, vars(owner).get(name, MISSING)) for owner, name, new in own),
        ]

    def check(self) -> None:
        """Look at everything that ours replace in this version of Triton.

        Raises:
            UnsupportedError: it calls something otherwise.
        """
        self._prepare()

    def _operation(self, name: str) -> object:
        """One of ours, which the interpreter calls as it calls its own.

        Raises:
            UnsupportedError: this version of Triton calls it otherwise.
        """
        ours, stock = getattr(self, name), getattr(self._builder, name, None)
        known, wanted = signature_of(ours), signature_of(stock)
        if known is not None and wanted is not None and not takes_all(known, wanted):
            refuse(stock)  # type: ignore[arg-type]
        return ours

    def _method(self, function: JITFunction) -> Callable[..., object]:
        def method(*arguments: object, **named: object) -> object:
            return self.function(function)(*arguments, **named)

        return method

    def _called(self) -> Callable[..., object]:
        def called(kernel: JITFunction, *arguments: object, **named: object) -> object:
            named.pop("_semantic", None)
            return self.function(kernel)(*arguments, **named)

        return called

    # ------------------------------------------------------------------ arguments

    def pointer(self, address: int, kind: str) -> object:
        """A pointer as a kernel's argument; `kind` is Triton's name of its type, "*fp32"."""
        dtype = self._language.str_to_ty(kind, None)
        return self._language.tensor(self._handle(np.array([address], dtype=np.uint64), dtype), dtype)

    def number(self, value: bool | int | float, kind: str = "") -> object:
        """A number as a kernel's argument: of the type of its annotation, or that Triton's launcher gives it."""
        if kind:
            dtype = self._language.str_to_ty(kind, None)
            if isinstance(value, float) and not dtype.is_floating():
                raise TypeError("'float' object cannot be interpreted as an integer")
            given = np.array([value])
            packed = values.is_packed(dtype.name)
            data = values.narrowed(given, dtype.name) if packed else given.astype(self._type(dtype))
        elif isinstance(value, bool):
            dtype, data = self._language.int1, np.array([value], dtype=np.bool_)
        elif isinstance(value, int):
            return self._module._implicit_cvt(value)
        else:
            dtype, data = self._language.float32, np.array([value], dtype=np.float32)
        return self._language.tensor(self._handle(data, dtype), dtype)

    def described(
        self, base: object, shape: Sequence[int], strides: Sequence[int], block: Sequence[int], padding: object
    ) -> object:
        """A tensor descriptor made on the host, as a kernel's argument."""
        constexpr = self._language.constexpr
        given = [self.number(int(stride)) for stride in strides[:-1]]
        return self._semantic.make_tensor_descriptor(
            base=base, shape=[self.number(int(size)) for size in shape], strides=[*given, constexpr(1)],
            block_shape=[constexpr(size) for size in block], padding_option=padding,
        )  # fmt: skip

    # ------------------------------------------------------------------ truth

    def _truth(self, value: object) -> object:
        """A condition, which no block can be (`visit_If` of the compiler)."""
        if self._is_block(value) and value.handle.data.size != 1:  # type: ignore[attr-defined]
            raise ValueError("Boolean value of Tensor with more than one value is ambiguous")
        return value

    def _is_block(self, value: object) -> bool:
        return isinstance(value, self._language.tensor) and bool(value.type.is_block())

    def _logical_and(self, first: object, second: Callable[[], object]) -> object:
        if not self._is_block(first) and not (isinstance(first, self._language.tensor) and self._is_block(second())):
            return first and second()
        return first.logical_and(second())  # type: ignore[attr-defined]

    def _logical_or(self, first: object, second: Callable[[], object]) -> object:
        if not self._is_block(first) and not (isinstance(first, self._language.tensor) and self._is_block(second())):
            return first or second()
        return first.logical_or(second())  # type: ignore[attr-defined]

    def _logical_not(self, value: object) -> object:
        return value.__not__() if self._is_block(value) else not value  # type: ignore[attr-defined]

    def _asserts(self, condition: object, message: str = "") -> object:
        return self._language.device_assert(condition, message)

    def _static_print(self, *texts: object, **_: object) -> None:
        if self.memory is not None and self.memory.program == 0:
            print(*texts)


OPERATIONS = (
    "binary_op", "cast_impl", "create_assert", "create_atomic_cas", "create_atomic_rmw", "create_dot", "create_erf",
    "create_extern_elementwise", "create_fma", "create_fp_to_fp", "create_inline_asm",
    "create_masked_load", "create_masked_store", "create_print", "ternary_op", "unary_op",
    # which not every version has
    "create_atomic_load", "create_atomic_poll", "create_atomic_store", "create_dot_scaled",
)  # fmt: skip
"""Methods of `InterpreterBuilder` that ours stand in the place of, where it has them."""
ADDED = ("create_descriptor_reduce", "get_bf16")
"""Methods that it has in some versions only, and that ours are in all."""


def _no_scaled_product(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError(f"dot_scaled {UNSUPPORTED}")


def _as_method(function: Callable[..., object]) -> Callable[..., object]:
    def method(tensor: object, *arguments: object, **named: object) -> object:
        return function(tensor, *arguments, **named)

    return method
