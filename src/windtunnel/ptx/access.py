"""Loads and stores of a warp, as functions in LLVM IR.

How the 32 addresses lie is found by `look_SIZE`, once in a block of instructions for all offsets from the same
addresses. Accesses of which a few sums show that they are inside of `low` to `high` and aligned go on at once, as one
access where the lanes are neighbours. The others ask the runtime's `wt_access`, which finds the allocation, reports
what is wrong, and answers with the lanes that may go on."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Sequence

from windtunnel.ptx.values import BITS, LANES, lanes, vector

ADDRESSES, MASK, I32 = vector("i64"), vector("i1"), vector("i32")
TOLD = "i64 %low, i64 %high, i32 %site, i32 %code, ptr %context, ptr %frame"
NAME = re.compile(r"(ld|st)([124])_(\w+)$")
SHAPE = "{ i32, i64, i64, i64 }"
"""How the lanes lie, the lowest and the highest address, all addresses' bits."""
NEIGHBOURS, EIGHTS, ONES, SCATTERED = range(4)
GROUP = 8
OWN_SPACES = 16
"""The code of the first space that is a block's or a thread's own."""
AHEAD, PAGE_AHEAD = 3, 32
"""Warps whose loads are fetched early, and whose in a kernel with barriers, where a block's warps take turns over a row
and a host's processor sees no stream."""
SAFE = 176
"""Offset of unused bytes in a frame: what lanes that take no part access."""
PERMIT = f"""define internal {MASK} @wt_permit({ADDRESSES} %a, {MASK} %m, {TOLD}, i32 %size) noinline {{
  %addresses = alloca {ADDRESSES}, align 64
  store {ADDRESSES} %a, ptr %addresses, align 64
  %bits = bitcast {MASK} %m to i32
  %ok = call i32 @wt_access(ptr %addresses, i32 %bits, i32 %size, i32 %code, i32 %site, ptr %context, ptr %frame)
  %result = bitcast i32 %ok to {MASK}
  ret {MASK} %result
}}"""
DECLARATIONS = {
    "wt_access": "declare i32 @wt_access(ptr, i32, i32, i32, i32, ptr, ptr)",
    "wt_groups": "declare i32 @wt_groups(i32, i32, i64, i64, i64, i64, i32, i32, i32, ptr, ptr)",
    "wt_permit": PERMIT,
    "llvm.prefetch.p0": "declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)",
}
REDUCTIONS = ("or", "umin", "umax")
FIRST = [lane - lane % GROUP for lane in range(LANES)]


def _splat(name: str, value: str) -> str:
    return (
        f"  %{name}.1 = insertelement {ADDRESSES} poison, i64 {value}, i32 0\n"
        f"  %{name} = shufflevector {ADDRESSES} %{name}.1, {ADDRESSES} poison, {I32} zeroinitializer\n"
    )


def _reduce(name: str, target: str, value: str) -> str:
    return f"  %{target} = call i64 @llvm.vector.reduce.{name}.v{LANES}i64({ADDRESSES} %{value})\n"


def known_shape(offsets: Sequence[int], size: int) -> tuple[int, int, int, int]:
    """How lanes lie at those bytes from the first one: the shape, the lowest, the highest, and all offsets' bits."""
    bits = functools.reduce(operator.or_, offsets)
    groups = [[o - offsets[g] for o in offsets[g : g + GROUP]] for g in range(0, LANES, GROUP)]
    if list(offsets) == [lane * size for lane in range(LANES)]:
        kind = NEIGHBOURS
    elif all(group == [lane * size for lane in range(GROUP)] for group in groups):
        kind = EIGHTS
    else:
        kind = SCATTERED if any(map(any, groups)) else ONES
    return kind, min(offsets), max(offsets), bits


def shape(size: int) -> tuple[str, dict[str, str]]:
    """The functions `look_SIZE`, which first sees whether all lanes are neighbours, and `shape_SIZE` for the others."""
    steps = lanes("i64", [lane * size for lane in range(LANES)])
    text = f"define internal {SHAPE} @look_{size}({ADDRESSES} %a) alwaysinline {{\n"
    text += f"  %low = extractelement {ADDRESSES} %a, i32 0\n" + _splat("begin", "%low")
    text += (
        f"  %line = add {ADDRESSES} %begin, {steps}\n  %off = icmp ne {ADDRESSES} %line, %a\n"
        f"  %bits = bitcast {MASK} %off to i32\n  %lies = icmp eq i32 %bits, 0\n"
        f"  br i1 %lies, label %near, label %apart, !prof !1\nnear:\n"
        f"  %end = add i64 %low, {(LANES - 1) * size}\n"
    )
    text += _made("near", str(NEIGHBOURS), "%low", "%end", "%low")
    text += f"apart:\n  %found = call {SHAPE} @shape_{size}({ADDRESSES} %a)\n  ret {SHAPE} %found\n}}\n"
    text += (
        f"define internal {SHAPE} @shape_{size}({ADDRESSES} %a) noinline nounwind willreturn "
        f"memory(none) speculatable {{\n"
    )
    text += f"  %first = shufflevector {ADDRESSES} %a, {ADDRESSES} poison, {I32} {lanes('i32', FIRST)}\n"
    text += f"  %step = sub {ADDRESSES} %a, %first\n"
    text += f"  %odd = xor {ADDRESSES} %step, {lanes('i64', [lane % GROUP * size for lane in range(LANES)])}\n"
    text += _reduce("or", "rises", "odd") + _reduce("or", "moves", "step")
    text += "  %rising = icmp eq i64 %rises, 0\n  %still = icmp eq i64 %moves, 0\n"
    for g in range(4):
        text += f"  %n{g} = extractelement {ADDRESSES} %a, i32 {g * GROUP}\n"
    text += "  br i1 %rising, label %eights, label %other\neights:\n"
    for g in (1, 2, 3):
        text += f"  %d{g} = sub i64 %n{g}, %n0\n  %x{g} = xor i64 %d{g}, {g * GROUP * size}\n"
    text += "  %x12 = or i64 %x1, %x2\n  %x = or i64 %x12, %x3\n  %all = icmp eq i64 %x, 0\n"
    text += f"  %kind1 = select i1 %all, i32 {NEIGHBOURS}, i32 {EIGHTS}\n  br label %few\n"
    text += (
        f"other:\n  br i1 %still, label %few, label %many\nfew:\n  %kind = phi i32 [ %kind1, %eights ], "
        f"[ {ONES}, %other ]\n"
    )
    text += f"  %reach = phi i64 [ {(GROUP - 1) * size}, %eights ], [ 0, %other ]\n"
    for word, name in (("umin", "low"), ("umax", "high")):
        for target, a, b in (
            (f"{name}1", "%n0", "%n1"),
            (f"{name}2", "%n2", "%n3"),
            (f"{name}", f"%{name}1", f"%{name}2"),
        ):
            text += f"  %{target} = call i64 @llvm.{word}.i64(i64 {a}, i64 {b})\n"
    text += "  %end = add i64 %high, %reach\n  %o1 = or i64 %n0, %n1\n  %o2 = or i64 %n2, %n3\n  %o = or i64 %o1, %o2\n"
    text += _made("few", "%kind", "%low", "%end", "%o")
    text += "many:\n" + _reduce("umin", "least", "a") + _reduce("umax", "most", "a") + _reduce("or", "bits", "a")
    text += _made("many", str(SCATTERED), "%least", "%most", "%bits") + "}"
    declared = {
        f"reduce.{name}": f"declare i64 @llvm.vector.reduce.{name}.v{LANES}i64({ADDRESSES})" for name in REDUCTIONS
    } | {f"llvm.{name}.i64": f"declare i64 @llvm.{name}.i64(i64, i64)" for name in ("umin", "umax")}
    return text, declared


def _made(name: str, *parts: str) -> str:
    text, whole = "", "poison"
    for j, (type, part) in enumerate(zip(("i32", "i64", "i64", "i64"), parts, strict=True)):
        text += f"  %{name}.r{j} = insertvalue {SHAPE} {whole}, {type} {part}, {j}\n"
        whole = f"%{name}.r{j}"
    return text + f"  ret {SHAPE} {whole}\n"


def permit(size: int) -> str:
    """The function `permit_SIZE`: which lanes may access, as the runtime says."""
    text = (
        f"define internal {MASK} @permit_{size}({SHAPE} %shape, {ADDRESSES} %a, {MASK} %m, i64 %offset, {TOLD}) "
        f"alwaysinline {{\n  %kind = extractvalue {SHAPE} %shape, 0\n"
        f"  %scattered = icmp eq i32 %kind, {SCATTERED}\n  br i1 %scattered, label %ask, label %groups\ngroups:\n"
        f"  %bits = bitcast {MASK} %m to i32\n"
    )
    for g in range(LANES // GROUP):
        text += f"  %n{g} = extractelement {ADDRESSES} %a, i32 {g * GROUP}\n  %s{g} = add i64 %n{g}, %offset\n"
    starts = ", ".join(f"i64 %s{g}" for g in range(LANES // GROUP))
    text += (
        f"  %said = call i32 @wt_groups(i32 %kind, i32 %bits, {starts}, i32 {size}, i32 %code, i32 %site, "
        f"ptr %context, ptr %frame)\n  %good = icmp ne i32 %said, 0\n  br i1 %good, label %go, label %ask\nask:\n"
    )
    text += _splat("moved", "%offset") + f"  %at = add {ADDRESSES} %a, %moved\n"
    return text + (
        f"  %asked = call {MASK} @wt_permit({ADDRESSES} %at, {MASK} %m, {TOLD}, i32 {size})\n  br label %go\n"
        f"go:\n  %ok = phi {MASK} [ %m, %groups ], [ %asked, %ask ]\n  ret {MASK} %ok\n}}"
    )


def size_of(name: str) -> int:
    found = NAME.match(name)
    assert found, name
    return BITS[found[3]] // 8 * int(found[2])


class AccessFunction:
    """The function `ld4_i32`, or one like it."""

    def __init__(self, name: str, ahead: int) -> None:
        found = NAME.match(name)
        assert found, name
        self.name, self.load, self.count, self.type = name, found[1] == "ld", int(found[2]), found[3]
        self.one, self.align = vector(self.type), BITS[self.type] // 8
        self.size, self.ahead = self.align * self.count, ahead
        many = self.one if self.count == 1 else "{" + ", ".join([self.one] * self.count) + "}"
        self.result = many if self.load else "void"
        self.values = "" if self.load else "".join(f", {self.one} %x{j}" for j in range(self.count))

    def text(self) -> str:
        head = f"{SHAPE} %shape, {ADDRESSES} %a, {MASK} %m, i64 %offset, {TOLD}{self.values}"
        text = f"define internal {self.result} @{self.name}({head}) alwaysinline {{\n"
        for j, part in enumerate(("kind", "least", "most", "bits")):
            text += f"  %{part} = extractvalue {SHAPE} %shape, {j}\n"
        single = self.count == 1
        text += (
            f"  %from = add i64 %least, %offset\n  %to = add i64 %most, %offset\n  %end = add i64 %to, {self.size}\n"
            f"  %above = icmp uge i64 %from, %low\n  %below = icmp ule i64 %end, %high\n"
            f"  %whole = icmp sge i64 %end, {self.size}\n"  # none wraps around
            f"  %or = or i64 %bits, %offset\n  %odd = and i64 %or, {self.size - 1}\n  %even = icmp eq i64 %odd, 0\n"
            f"  %maskbits = bitcast {MASK} %m to i32\n  %every = icmp eq i32 %maskbits, -1\n"
            f"  %c0 = and i1 %whole, %even\n  %c1 = and i1 %above, %below\n  %inside = and i1 %c0, %c1\n"
            f"  %fine = and i1 %inside, %every\n  br i1 %fine, label %go, label %part\ngo:\n"
            f"  switch i32 %kind, label %scattered [ i32 {NEIGHBOURS}, label %neighbours "
        )
        if single:
            text += f"i32 {EIGHTS}, label %eights " + (f"i32 {ONES}, label %ones " if self.load else "")
        text += "]\n" + self._neighbours() + (self._eights() if single else "")
        text += (self._ones() if self.load else "") + self._masked() if single else "part:\n  br label %ask\n"
        for label, function in (("scattered", "any"), ("ask", "asked")):
            text += f"{label}:\n" + _splat(f"moved.{label}", "%offset")
            text += f"  %at.{label} = add {ADDRESSES} %a, %moved.{label}\n"
            passed = f"{ADDRESSES} %at.{label}" + (f", {MASK} %m, {TOLD}" if label == "ask" else "") + self.values
            call = f"call {self.result} @{self.name}_{function}({passed})"
            text += (
                f"  %r.{label} = {call}\n  ret {self.result} %r.{label}\n" if self.load else f"  {call}\n  ret void\n"
            )
        return text + "}\n" + self._any() + self._asked()

    def _masked(self) -> str:
        """Neighbours of which only some take part, with room for all; or some lanes that store at one place, of which
        the last one's value stays."""
        named = f"llvm.masked.{'load' if self.load else 'store'}.v{LANES}{self.type}.p0"
        text = (
            f"part:\n  %line = icmp eq i32 %kind, {NEIGHBOURS}\n  %some = and i1 %inside, %line\n"
            f"  br i1 %some, label %masked, label %ask\nmasked:\n  %q = inttoptr i64 %from to ptr\n"
        )
        if self.load:
            return text + (
                f"  %some.read = call {self.one} @{named}(ptr %q, i32 {self.align}, {MASK} %m, "
                f"{self.one} zeroinitializer)\n  ret {self.one} %some.read\n"
            )
        text = text.replace("label %ask\n", "label %one\n", 1)
        return text + (
            f"  call void @{named}({self.one} %x0, ptr %q, i32 {self.align}, {MASK} %m)\n  ret void\n"
            f"one:\n  %same = icmp eq i64 %least, %most\n  %here = icmp ne i32 %maskbits, 0\n"
            f"  %place0 = and i1 %same, %here\n  %place1 = and i1 %place0, %inside\n"
            f"  br i1 %place1, label %last, label %ask\nlast:\n"
            f"  %zeros = call i32 @llvm.ctlz.i32(i32 %maskbits, i1 false)\n  %lane = xor i32 %zeros, 31\n"
            f"  %value = extractelement {self.one} %x0, i32 %lane\n  %at.one = inttoptr i64 %from to ptr\n"
            f"  store {self.type} %value, ptr %at.one, align {self.align}\n  ret void\n"
        )

    def declared(self) -> dict[str, str]:
        """What its text needs."""
        load = f"llvm.masked.load.v{LANES}{self.type}.p0"
        store = f"llvm.masked.store.v{LANES}{self.type}.p0"
        if self.count > 1:
            return dict(DECLARATIONS)
        if self.load:
            return DECLARATIONS | {load: f"declare {self.one} @{load}(ptr, i32 immarg, {MASK}, {self.one})"}
        return DECLARATIONS | {
            store: f"declare void @{store}({self.one}, ptr, i32 immarg, {MASK})",
            "llvm.ctlz.i32": "declare i32 @llvm.ctlz.i32(i32, i1 immarg)",
        }

    def _neighbours(self) -> str:
        big = f"<{LANES * self.count} x {self.type}>"
        text = "neighbours:\n  %p = inttoptr i64 %from to ptr\n"
        if self.load:
            text += (
                f"  %own = icmp uge i32 %code, {OWN_SPACES}\n  br i1 %own, label %near, label %ahead\nahead:\n"
                f"  %next = getelementptr i8, ptr %p, i64 {self.ahead * LANES * self.size}\n"
                f"  call void @llvm.prefetch.p0(ptr %next, i32 0, i32 3, i32 1)\n"
                f"  %after = getelementptr i8, ptr %next, i64 64\n"
                f"  call void @llvm.prefetch.p0(ptr %after, i32 0, i32 3, i32 1)\n  br label %near\nnear:\n"
            )
            text += f"  %data = load {big}, ptr %p, align {self.align}\n"
            if self.count == 1:
                return text + f"  ret {self.one} %data\n"
            whole = "poison"
            for j in range(self.count):
                pick = lanes("i32", [i * self.count + j for i in range(LANES)])
                text += f"  %d{j} = shufflevector {big} %data, {big} poison, {I32} {pick}\n"
                text += f"  %s{j} = insertvalue {self.result} {whole}, {self.one} %d{j}, {j}\n"
                whole = f"%s{j}"
            return text + f"  ret {self.result} {whole}\n"
        joined, body = self._joined()
        return text + body + f"  store {big} {joined}, ptr %p, align {self.align}\n  ret void\n"

    def _joined(self) -> tuple[str, str]:
        """The lanes' vectors as they lie in memory."""
        if self.count == 1:
            return "%x0", ""

        def pair(a: str, b: str, length: int, name: str) -> str:
            wide = f"<{length} x {self.type}>"
            order = lanes("i32", list(range(2 * length)))
            return f"  {name} = shufflevector {wide} {a}, {wide} {b}, <{2 * length} x i32> {order}\n"

        text = pair("%x0", "%x1", LANES, "%w0")
        if self.count == 4:
            text += pair("%x2", "%x3", LANES, "%w1") + pair("%w0", "%w1", 2 * LANES, "%w")
        total = LANES * self.count
        order = lanes("i32", [(i % self.count) * LANES + i // self.count for i in range(total)])
        wide, source = f"<{total} x {self.type}>", "%w" if self.count == 4 else "%w0"
        return "%z", text + f"  %z = shufflevector {wide} {source}, {wide} poison, <{total} x i32> {order}\n"

    def _starts(self, letter: str) -> str:
        text = ""
        for g in range(LANES // GROUP):
            text += f"  %{letter}n{g} = extractelement {ADDRESSES} %a, i32 {g * GROUP}\n"
            text += (
                f"  %{letter}o{g} = add i64 %{letter}n{g}, %offset\n  %{letter}{g} = inttoptr i64 %{letter}o{g} "
                f"to ptr\n"
            )
        return text

    def _eights(self) -> str:
        one, part = self.one, f"<{GROUP} x {self.type}>"
        text, whole = "eights:\n" + self._starts("q"), "poison"
        for g in range(LANES // GROUP):
            if not self.load:
                pick = "<" + ", ".join(f"i32 {g * GROUP + i}" for i in range(GROUP)) + ">"
                text += f"  %y{g} = shufflevector {one} %x0, {one} poison, <{GROUP} x i32> {pick}\n"
                text += f"  store {part} %y{g}, ptr %q{g}, align {self.align}\n"
                continue
            spread = lanes("i32", [lane % GROUP for lane in range(LANES)])
            taken = lanes("i32", [LANES + lane if lane // GROUP == g else lane for lane in range(LANES)])
            text += f"  %y{g} = load {part}, ptr %q{g}, align {self.align}\n"
            text += f"  %z{g} = shufflevector {part} %y{g}, {part} poison, {I32} {spread}\n"
            text += f"  %w{g} = shufflevector {one} {whole}, {one} %z{g}, {I32} {taken}\n"
            whole = f"%w{g}"
        return text + (f"  ret {one} {whole}\n" if self.load else "  ret void\n")

    def _ones(self) -> str:
        text, whole = "ones:\n" + self._starts("r"), "poison"
        for g in range(LANES // GROUP):
            text += f"  %u{g} = load {self.type}, ptr %r{g}, align {self.align}\n"
            text += f"  %v{g} = insertelement {self.one} {whole}, {self.type} %u{g}, i32 {g * GROUP}\n"
            whole = f"%v{g}"
        text += f"  %spread = shufflevector {self.one} {whole}, {self.one} poison, {I32} {lanes('i32', FIRST)}\n"
        return text + f"  ret {self.one} %spread\n"

    def _any(self) -> str:
        """The lanes' addresses are anywhere, and all are good."""
        text = f"define internal {self.result} @{self.name}_any({ADDRESSES} %a{self.values}) noinline {{\n"
        whole, parts = "poison", ["zeroinitializer"] * self.count
        for lane in range(LANES):
            text += (
                f"  %i{lane} = extractelement {ADDRESSES} %a, i32 {lane}\n  %p{lane} = inttoptr i64 %i{lane} to ptr\n"
            )
            for j in range(self.count):
                here, at = f"{lane}.{j}", f"%p{lane}.{j}"
                text += f"  {at} = getelementptr i8, ptr %p{lane}, i64 {self.align * j}\n"
                if self.load:
                    text += f"  %l{here} = load {self.type}, ptr {at}, align {self.align}\n"
                    text += f"  %g{here} = insertelement {self.one} {parts[j]}, {self.type} %l{here}, i32 {lane}\n"
                    parts[j] = f"%g{here}"
                else:
                    text += f"  %e{here} = extractelement {self.one} %x{j}, i32 {lane}\n"
                    text += f"  store {self.type} %e{here}, ptr {at}, align {self.align}\n"
        if not self.load:
            return text + "  ret void\n}\n"
        if self.count == 1:
            return text + f"  ret {self.one} {parts[0]}\n}}\n"
        for j in range(self.count):
            text += f"  %s{j} = insertvalue {self.result} {whole}, {self.one} {parts[j]}, {j}\n"
            whole = f"%s{j}"
        return text + f"  ret {self.result} {whole}\n}}\n"

    def _asked(self) -> str:
        """The runtime says which lanes may go on,
        unless all that run are inside of the bounds; the rest access bytes of
        no use."""
        text = (
            f"define internal {self.result} @{self.name}_asked({ADDRESSES} %a, {MASK} %m, "
            f"{TOLD}{self.values}) noinline {{\n"
        )
        text += _splat("lowest", "%low") + f"  %room = sub i64 %high, %low\n  %last = sub i64 %room, {self.size}\n"
        text += _splat("limit", "%last") + (
            f"  %from = sub {ADDRESSES} %a, %lowest\n  %out = icmp ugt {ADDRESSES} %from, %limit\n"
            f"  %odd = and {ADDRESSES} %a, splat (i64 {self.size - 1})\n  %uneven = icmp ne {ADDRESSES} "
            f"%odd, zeroinitializer\n"
            f"  %wrong1 = or {MASK} %out, %uneven\n  %wrong = and {MASK} %wrong1, %m\n"
            f"  %bits = bitcast {MASK} %wrong to i32\n  %large = icmp uge i64 %room, {self.size}\n"
            f"  %none = icmp eq i32 %bits, 0\n  %fine = and i1 %none, %large\n"
            f"  br i1 %fine, label %go, label %ask\nask:\n"
            f"  %asked = call {MASK} @wt_permit({ADDRESSES} %a, {MASK} %m, {TOLD}, i32 {self.size})\n  br label %go\n"
            f"go:\n  %ok = phi {MASK} [ %m, %0 ], [ %asked, %ask ]\n"
            f"  %safe = getelementptr i8, ptr %frame, i64 {SAFE}\n  %safei = ptrtoint ptr %safe to i64\n"
        )
        text += _splat("elsewhere", "%safei") + f"  %b = select {MASK} %ok, {ADDRESSES} %a, {ADDRESSES} %elsewhere\n"
        call = f"call {self.result} @{self.name}_any({ADDRESSES} %b{self.values})"
        if not self.load:
            return text + f"  {call}\n  ret void\n}}"
        return text + f"  %r = {call}\n  ret {self.result} %r\n}}"


def function(name: str, ahead: int) -> tuple[str, dict[str, str]]:
    """The text of an access function, and what it declares."""
    made = AccessFunction(name, ahead)
    return made.text(), made.declared()
