"""NVVM IR to PTX by LLVM: what NVIDIA's libNVVM and libdevice do for Numba.

Numba hands over LLVM IR for `nvptx64-nvidia-cuda` that declares functions of libdevice by name. Mathematical functions
stay calls, which the executor answers (`ptx/semantics/special.py`); the others are a few instructions each, written out
here after NVIDIA's "libdevice User's Guide" and, for fast ones, the table of intrinsics of the CUDA C++ Programming
Guide.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence

from windtunnel.errors import MissingPackageError

TRIPLE = "nvptx64-nvidia-cuda"
NO_TABLES = "-min-jump-table-entries=1000000"
"""Every `switch` becomes branches: the executor has no `brx.idx`."""
RENAMED = {
    "llvm.nvvm.vote.sync": "__nv_vote_sync", "llvm.nvvm.shfl.sync.i32": "__nv_shfl_sync",
    "llvm.nvvm.match.all.sync.i32": "llvm.nvvm.match.all.sync.i32p",
    "llvm.nvvm.match.all.sync.i64": "llvm.nvvm.match.all.sync.i64p",
}  # fmt: skip
"""Functions of the warp as NVVM IR has them (NVVM IR Specification), and the names here."""
OF_WARP = re.compile(r'(call \w+ asm [^\n]*"activemask[^\n]*\))')
"""Assembly whose result is another one in another branch."""
FLUSHED = '"denormal-fp-math-f32"="preserve-sign,preserve-sign"'
DEFINITION = re.compile(r"^(define [^\n]*?)((?: !dbg !\d+)? \{)$", re.MULTILINE)
DECLARED = re.compile(r'^declare [^@]*@"?(__nv_\w+)"?\(', re.MULTILINE)
INTEGERS = (("", "i32"), ("ll", "i64"))
ROUNDINGS = {"rn": "rint", "rd": "floor", "ru": "ceil", "rz": "trunc"}
MODES = {"rn": "rn", "rd": "rm", "ru": "rp", "rz": "rz"}
FLOATS = {"float": ("f", "f32", "i32"), "double": ("d", "f64", "i64")}


def to_ptx(
    modules: Sequence[str], capability: tuple[int, int], *, fused: bool = True, flushed: bool = False, level: int = 3
) -> str:
    """PTX of modules in LLVM's text form, linked to one; `flushed` takes subnormal floats for zeros.

    Raises:
        MissingPackageError: llvmlite is not installed.
        RuntimeError: LLVM does not take the IR.
    """
    try:
        import llvmlite.binding as llvm
    except ImportError:
        raise MissingPackageError("NVVM IR is compiled by llvmlite, which is not installed", name="llvmlite") from None
    _targets()
    llvm.set_option("windtunnel", f"-nvptx-fma-level={2 if fused else 0}")
    whole = None
    modules = [_renamed(text) for text in modules]
    library = "\n".join(_library(modules))
    if flushed:
        library = library.replace(".approx.f(", ".approx.ftz.f(")
    for text in (*modules, library):
        module = llvm.parse_assembly(text)
        module.verify()
        if whole is None:
            whole = module
        else:
            whole.link_in(module)
    if flushed:
        whole = llvm.parse_assembly(DEFINITION.sub(rf"\1 {FLUSHED}\2", str(whole)))
    target = llvm.Target.from_triple(TRIPLE)
    machine = target.create_target_machine(cpu=f"sm_{capability[0]}{capability[1]}", opt=level)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=level))
    builder.getModulePassManager().run(whole, builder)
    return str(machine.emit_assembly(whole))


@functools.cache
def _targets() -> None:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.set_option("windtunnel", NO_TABLES)


def _renamed(text: str) -> str:
    """IR in which functions that only NVVM has are LLVM's, or are called like those of libdevice."""
    for before, after in RENAMED.items():
        text = re.sub(rf'@"?{re.escape(before)}"?\(', f"@{after}(", text)
    return OF_WARP.sub(r"\1 convergent", text)


def _library(modules: Sequence[str]) -> Iterator[str]:
    """Definitions of what the modules declare of libdevice, as far as they are a few instructions."""
    yield f'target triple = "{TRIPLE}"'
    wanted = {name.removeprefix("__nv_") for text in modules for name in DECLARED.findall(text)}
    helpers: set[str] = set()
    for name in sorted(wanted & _bodies().keys()):
        result, parameters, body, uses = _bodies()[name]
        given = ", ".join(f"{kind} %{letter}" for letter, kind in zip("abcde", parameters, strict=False))
        yield f"define linkonce_odr {result} @__nv_{name}({given}) alwaysinline {{\n{body}\n}}"
        helpers.update(uses)
    yield from sorted(helpers)


Body = tuple[str, tuple[str, ...], str, tuple[str, ...]]


@functools.cache
def _bodies() -> dict[str, Body]:
    """The functions that are written out: type of the result, those of the parameters, instructions, declarations."""
    return {**_integers(), **_classes(), **_conversions(), **_rounded(), **_fast(), **_pairs(), **_of_warps()}


def _call(result: str, function: str, *given: str) -> tuple[str, str]:
    """A call of a function of LLVM's, and its declaration."""
    kinds = ", ".join(one.split()[0] for one in given)
    return f"call {result} @{function}({', '.join(given)})", f"declare {result} @{function}({kinds})"


def _one(result: str, parameters: tuple[str, ...], function: str, *more: str) -> Body:
    given = [f"{kind} %{letter}" for letter, kind in zip("abcde", parameters, strict=False)]
    call, declared = _call(result, function, *given, *more)
    return result, parameters, f"  %r = {call}\n  ret {result} %r", (declared,)


def _integers() -> dict[str, Body]:
    found: dict[str, Body] = {}
    for suffix, kind in INTEGERS:
        narrow = "" if kind == "i32" else f"\n  %n = trunc {kind} %r to i32"
        result = "%r" if kind == "i32" else "%n"
        for name, function, flags in (("popc", "ctpop", []), ("clz", "ctlz", ["i1 false"])):
            call, declared = _call(kind, f"llvm.{function}.{kind}", f"{kind} %a", *flags)
            found[name + suffix] = "i32", (kind,), f"  %r = {call}{narrow}\n  ret i32 {result}", (declared,)
        found["brev" + suffix] = _one(kind, (kind,), f"llvm.bitreverse.{kind}")
        call, declared = _call(kind, f"llvm.cttz.{kind}", f"{kind} %a", "i1 false")
        found["ffs" + suffix] = (
            "i32", (kind,),
            f"  %t = {call}\n  %s = add {kind} %t, 1\n  %z = icmp eq {kind} %a, 0\n"
            f"  %r = select i1 %z, {kind} 0, {kind} %s{narrow}\n  ret i32 {result}", (declared,),
        )  # fmt: skip
        found[suffix + "abs"] = _one(kind, (kind,), f"llvm.abs.{kind}", "i1 false")
        for name in ("min", "max"):
            found[suffix + name] = _one(kind, (kind, kind), f"llvm.s{name}.{kind}")
            found[f"u{suffix}{name}"] = _one(kind, (kind, kind), f"llvm.u{name}.{kind}")
        wide, high = ("i64", "mulhi") if kind == "i32" else ("i128", "mul64hi")
        for name, extend in ((high, "sext"), (f"u{high}", "zext")):
            found[name] = (
                kind, (kind, kind),
                f"  %x = {extend} {kind} %a to {wide}\n  %y = {extend} {kind} %b to {wide}\n  %p = mul {wide} %x, %y\n"
                f"  %h = lshr {wide} %p, {kind[1:]}\n  %r = trunc {wide} %h to {kind}\n  ret {kind} %r", (),
            )  # fmt: skip
    for name, sign in (("sad", "s"), ("usad", "u")):
        more, of_more = _call("i32", f"llvm.{sign}max.i32", "i32 %a", "i32 %b")
        less, of_less = _call("i32", f"llvm.{sign}min.i32", "i32 %a", "i32 %b")
        body = f"  %m = {more}\n  %l = {less}\n  %d = sub i32 %m, %l\n  %r = add i32 %d, %c\n  ret i32 %r"
        found[name] = "i32", ("i32", "i32", "i32"), body, (of_more, of_less)
    for name, extend, shift, round_up in (
        ("hadd", "sext", "ashr", 0), ("rhadd", "sext", "ashr", 1), ("uhadd", "zext", "lshr", 0),
        ("urhadd", "zext", "lshr", 1),
    ):  # fmt: skip
        found[name] = (
            "i32", ("i32", "i32"),
            f"  %x = {extend} i32 %a to i64\n  %y = {extend} i32 %b to i64\n  %s = add i64 %x, %y\n"
            f"  %t = add i64 %s, {round_up}\n  %h = {shift} i64 %t, 1\n  %r = trunc i64 %h to i32\n  ret i32 %r", (),
        )  # fmt: skip
    return found


def _classes() -> dict[str, Body]:
    """Of what kind a number is, and its bits."""
    found: dict[str, Body] = {}
    for kind, (_, name, bits) in FLOATS.items():
        last = "f" if kind == "float" else "d"
        absolute, declared = _call(kind, f"llvm.fabs.{name}", f"{kind} %a")
        infinite, finite = "0x7FF0000000000000", "finitef" if kind == "float" else "isfinited"
        for function, test in (
            (f"isnan{last}", f"  %t = fcmp uno {kind} %a, %a"),
            (f"isinf{last}", f"  %m = {absolute}\n  %t = fcmp oeq {kind} %m, {infinite}"),
            (finite, f"  %m = {absolute}\n  %t = fcmp olt {kind} %m, {infinite}"),
            (f"signbit{last}", f"  %i = bitcast {kind} %a to {bits}\n  %t = icmp slt {bits} %i, 0"),
        ):
            uses = (declared,) if "%m" in test else ()
            found[function] = "i32", (kind,), f"{test}\n  %r = zext i1 %t to i32\n  ret i32 %r", uses
    for function, source, result in (
        ("float_as_int", "float", "i32"), ("int_as_float", "i32", "float"), ("float_as_uint", "float", "i32"),
        ("uint_as_float", "i32", "float"), ("double_as_longlong", "double", "i64"),
        ("longlong_as_double", "i64", "double"),
    ):  # fmt: skip
        found[function] = result, (source,), f"  %r = bitcast {source} %a to {result}\n  ret {result} %r", ()
    return found


def _conversions() -> dict[str, Body]:
    """Floating-point numbers to integers; the other way where the nearest number is asked for."""
    found: dict[str, Body] = {}
    for source, (_, name, _) in FLOATS.items():
        for target, kind, signed in (
            ("int", "i32", "s"), ("uint", "i32", "u"), ("ll", "i64", "s"), ("ull", "i64", "u"),
        ):  # fmt: skip
            for mode, function in ROUNDINGS.items():
                whole, declared = _call(source, f"llvm.{function}.{name}", f"{source} %a")
                convert, also = _call(kind, f"llvm.fpto{signed}i.sat.{kind}.{name}", f"{source} %w")
                body = f"  %w = {whole}\n  %r = {convert}\n  ret {kind} %r"
                found[f"{source}2{target}_{mode}"] = kind, (source,), body, (declared, also)
            body = f"  %r = {signed}itofp {kind} %a to {source}\n  ret {source} %r"
            found[f"{target}2{source}_rn"] = source, (kind,), body, ()
    for source, (_, name, _) in FLOATS.items():
        last = "f" if source == "float" else ""
        for function, rounds in (("llrint", "rint"), ("llround", "round")):
            whole, declared = _call(source, f"llvm.{rounds}.{name}", f"{source} %a")
            convert, also = _call("i64", f"llvm.fptosi.sat.i64.{name}", f"{source} %w")
            found[function + last] = (
                "i64", (source,), f"  %w = {whole}\n  %r = {convert}\n  ret i64 %r", (declared, also)
            )  # fmt: skip
    found["double2float_rn"] = "float", ("double",), "  %r = fptrunc double %a to float\n  ret float %r", ()
    return found


def _rounded() -> dict[str, Body]:
    """Arithmetic in a stated rounding mode, which nothing fuses."""
    found: dict[str, Body] = {}
    for kind, (letter, _, _) in FLOATS.items():
        for mode, suffix in MODES.items():
            for name in ("add", "mul", "div"):
                found[f"{letter}{name}_{mode}"] = _one(kind, (kind, kind), f"llvm.nvvm.{name}.{suffix}.{letter}")
            for name in ("rcp", "sqrt"):
                found[f"{letter}{name}_{mode}"] = _one(kind, (kind,), f"llvm.nvvm.{name}.{suffix}.{letter}")
            fma = "fmaf" if kind == "float" else "fma"
            found[f"{fma}_{mode}"] = _one(kind, (kind,) * 3, f"llvm.nvvm.fma.{suffix}.{letter}")
    return found


def _fast() -> dict[str, Body]:
    """Fast functions of floats, of the approximations that the special-function unit has."""
    power, logarithm = "llvm.nvvm.ex2.approx.f", "llvm.nvvm.lg2.approx.f"
    exp2, of_exp2 = _call("float", power, "float %t")
    log2, of_log2 = _call("float", logarithm, "float %a")
    found: dict[str, Body] = {
        "fast_sinf": _one("float", ("float",), "llvm.nvvm.sin.approx.f"),
        "fast_cosf": _one("float", ("float",), "llvm.nvvm.cos.approx.f"),
        "fast_log2f": _one("float", ("float",), logarithm),
        "fast_fdividef": _one("float", ("float", "float"), "llvm.nvvm.div.approx.f"),
    }
    # The nearest floats to log2(e), log2(10), log(2) and log10(2).
    for name, factor in (("fast_expf", "0x3FF7154760000000"), ("fast_exp10f", "0x400A934F00000000")):
        found[name] = "float", ("float",), f"  %t = fmul float %a, {factor}\n  %r = {exp2}\n  ret float %r", (of_exp2,)
    for name, factor in (("fast_logf", "0x3FE62E4300000000"), ("fast_log10f", "0x3FD3441360000000")):
        body = f"  %l = {log2}\n  %r = fmul float %l, {factor}\n  ret float %r"
        found[name] = "float", ("float",), body, (of_log2,)
    body = f"  %l = {log2}\n  %t = fmul float %b, %l\n  %r = {exp2}\n  ret float %r"
    found["fast_powf"] = "float", ("float", "float"), body, (of_log2, of_exp2)
    sine, of_sine = _call("float", "llvm.nvvm.sin.approx.f", "float %a")
    cosine, of_cosine = _call("float", "llvm.nvvm.cos.approx.f", "float %a")
    divided, of_divided = _call("float", "llvm.nvvm.div.approx.f", "float %s", "float %c")
    body = f"  %s = {sine}\n  %c = {cosine}\n  %r = {divided}\n  ret float %r"
    found["fast_tanf"] = "float", ("float",), body, (of_sine, of_cosine, of_divided)
    return found


def _pairs() -> dict[str, Body]:
    """Functions with two results, the other ones at addresses."""
    found: dict[str, Body] = {}
    for kind, (_, name, _) in FLOATS.items():
        suffix = "f" if kind == "float" else ""
        whole, declared = _call(kind, f"llvm.trunc.{name}", f"{kind} %a")
        signed, also = _call(kind, f"llvm.copysign.{name}", f"{kind} %f", f"{kind} %a")
        absolute, again = _call(kind, f"llvm.fabs.{name}", f"{kind} %a")
        body = (
            f"  %w = {whole}\n  store {kind} %w, ptr %b\n  %d = fsub {kind} %a, %w\n  %m = {absolute}\n"
            f"  %i = fcmp oeq {kind} %m, 0x7FF0000000000000\n  %f = select i1 %i, {kind} 0.0, {kind} %d\n"
            f"  %r = {signed}\n  ret {kind} %r"
        )
        found[f"modf{suffix}"] = kind, (kind, "ptr"), body, (declared, also, again)
        sine, of_sine = _call(kind, f"__nv_sin{suffix}", f"{kind} %a")
        cosine, of_cosine = _call(kind, f"__nv_cos{suffix}", f"{kind} %a")
        found[f"frexp{suffix}"] = _split(kind)
        body = f"  %s = {sine}\n  store {kind} %s, ptr %b\n  %o = {cosine}\n  store {kind} %o, ptr %c\n  ret void"
        found[f"sincos{suffix}"] = "void", (kind, "ptr", "ptr"), body, (of_sine, of_cosine)
    return found


def _split(kind: str) -> Body:
    """`frexp`: a number as a fraction from 1/2 on, and a power of two; zeros, infinities and NaNs stay as they are."""
    if kind == "double":
        bits, mantissa, bias, field, shift, scale = "i64", 52, 1022, 2047, 54, "0x4350000000000000"
    else:
        bits, mantissa, bias, field, shift, scale = "i32", 23, 126, 255, 26, "0x4190000000000000"
    absolute, declared = _call(kind, f"llvm.fabs.{FLOATS[kind][1]}", f"{kind} %a")
    body = (
        f"  %m = {absolute}\n  %u = bitcast {kind} %m to {bits}\n  %t = icmp ult {bits} %u, {1 << mantissa}\n"
        f"  %x = fmul {kind} %a, {scale}\n  %y = select i1 %t, {kind} %x, {kind} %a\n"
        f"  %v = bitcast {kind} %y to {bits}\n  %h = lshr {bits} %v, {mantissa}\n  %e = and {bits} %h, {field}\n"
        f"  %o = select i1 %t, {bits} {bias + shift}, {bits} {bias}\n  %p = sub {bits} %e, %o\n"
        f"  %z = fcmp oeq {kind} %a, 0.0\n  %l = icmp uge {bits} %u, {field << mantissa}\n  %s = or i1 %z, %l\n"
        f"  %q = select i1 %s, {bits} 0, {bits} %p\n"
        + ("  %n = trunc i64 %q to i32\n  store i32 %n, ptr %b\n" if bits == "i64" else "  store i32 %q, ptr %b\n")
        + f"  %c = and {bits} %v, {~(field << mantissa) & ((1 << int(bits[1:])) - 1)}\n"
        f"  %d = or {bits} %c, {bias << mantissa}\n  %f = bitcast {bits} %d to {kind}\n"
        f"  %r = select i1 %s, {kind} %a, {kind} %f\n  ret {kind} %r"
    )
    return kind, (kind, "ptr"), body, (declared,)


def _of_warps() -> dict[str, Body]:
    """Votes and shuffles, whose kind is an argument that is a constant."""
    votes = [_call("i1", f"llvm.nvvm.vote.{name}.sync", "i32 %a", "i1 %c") for name in ("all", "any", "uni")]
    ballot = _call("i32", "llvm.nvvm.vote.ballot.sync", "i32 %a", "i1 %c")
    given = ("i32 %a", "i32 %c", "i32 %d", "i32 %e")
    kinds = ("idx", "up", "down", "bfly")
    shuffles = [_call("{i32, i1}", f"llvm.nvvm.shfl.sync.{kind}.i32p", *given) for kind in kinds]
    of_votes = [
        *(f"  %v{at} = {call}\n  %r{at} = insertvalue {{i32, i1}} {{i32 0, i1 0}}, i1 %v{at}, 1"
          for at, (call, _) in enumerate(votes)),
        f"  %v3 = {ballot[0]}\n  %r3 = insertvalue {{i32, i1}} {{i32 0, i1 0}}, i32 %v3, 0",
    ]  # fmt: skip
    of_shuffles = [f"  %r{at} = {call}" for at, (call, _) in enumerate(shuffles)]
    both, uses = "{i32, i1}", [tuple(declared for _, declared in calls) for calls in ((*votes, ballot), shuffles)]
    return {
        "vote_sync": (both, ("i32", "i32", "i1"), _by_kind(of_votes), uses[0]),
        "shfl_sync": (both, ("i32",) * 5, _by_kind(of_shuffles), uses[1]),
    }


def _by_kind(bodies: Sequence[str]) -> str:
    """The one of four bodies, each with a result %rN, that the second argument says."""
    cases = " ".join(f"i32 {at}, label %k{at}" for at in range(3))
    blocks = "\n".join(f"k{at}:\n{body}\n  ret {{i32, i1}} %r{at}" for at, body in enumerate(bodies))
    return f"  switch i32 %b, label %k3 [ {cases} ]\n{blocks}"
