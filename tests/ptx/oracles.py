"""What each instruction gives, by the formulas of the PTX guide, on Python's exact numbers: independent of the
executor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tests.ptx.harness import BITS, CANONICAL, FORMATS, decode, encode, negative, root

Oracle = Callable[..., int | tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    text: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    oracle: Oracle
    ulps: float = 0
    """Units in the last place by which an approximation may differ."""

    @property
    def name(self) -> str:
        return self.text.split(".")[0].split()[0]


CASES: list[Case] = []


def case(text: str, outputs: str, inputs: str, oracle: Oracle, ulps: float = 0) -> None:
    CASES.append(Case(text, tuple(outputs.split()), tuple(inputs.split()), oracle, ulps))


def unsigned(value: int, bits: int) -> int:
    return value & ((1 << bits) - 1)


def signed(value: int, bits: int) -> int:
    value = unsigned(value, bits)
    return value - (1 << bits) if value >> (bits - 1) else value


def of(kind: str) -> Callable[[int], int]:
    bits = int(kind[1:])
    return (lambda v: signed(v, bits)) if kind[0] == "s" else (lambda v: unsigned(v, bits))


# Integers

for kind in ("u16", "s16", "u32", "s32", "u64", "s64"):
    n, get = int(kind[1:]), of(kind)
    two, three = f"{kind} {kind}", f"{kind} {kind} {kind}"
    case(f"add.{kind} {{d0}}, {{a0}}, {{a1}};", kind, two, lambda a, b: a + b)
    case(f"sub.{kind} {{d0}}, {{a0}}, {{a1}};", kind, two, lambda a, b: a - b)
    case(f"mul.lo.{kind} {{d0}}, {{a0}}, {{a1}};", kind, two, lambda a, b: a * b)
    case(f"mul.hi.{kind} {{d0}}, {{a0}}, {{a1}};", kind, two, lambda a, b, g=get, n=n: g(a) * g(b) >> n)
    case(f"mad.lo.{kind} {{d0}}, {{a0}}, {{a1}}, {{a2}};", kind, three, lambda a, b, c: a * b + c)
    case(
        f"mad.hi.{kind} {{d0}}, {{a0}}, {{a1}}, {{a2}};",
        kind,
        three,
        lambda a, b, c, g=get, n=n: (g(a) * g(b) >> n) + c,
    )
    if n < 64:
        wide = kind[0] + str(2 * n)
        case(f"mul.wide.{kind} {{d0}}, {{a0}}, {{a1}};", wide, two, lambda a, b, g=get: g(a) * g(b))
        case(
            f"mad.wide.{kind} {{d0}}, {{a0}}, {{a1}}, {{a2}};",
            wide,
            f"{two} {wide}",
            lambda a, b, c, g=get: g(a) * g(b) + c,
        )

    def quotient(a: int, b: int, g: Callable[[int], int] = get) -> int:
        x, y = g(a), g(b)
        return -1 if y == 0 else abs(x) // abs(y) * (-1 if (x < 0) != (y < 0) else 1)

    def remainder(a: int, b: int, g: Callable[[int], int] = get) -> int:
        x, y = g(a), g(b)
        return x if y == 0 else abs(x) % abs(y) * (-1 if x < 0 else 1)

    case(f"div.{kind} {{d0}}, {{a0}}, {{a1}};", kind, two, quotient)
    case(f"rem.{kind} {{d0}}, {{a0}}, {{a1}};", kind, two, remainder)
    case(f"min.{kind} {{d0}}, {{a0}}, {{a1}};", kind, two, lambda a, b, g=get: min(g(a), g(b)))
    case(f"max.{kind} {{d0}}, {{a0}}, {{a1}};", kind, two, lambda a, b, g=get: max(g(a), g(b)))
    case(f"sad.{kind} {{d0}}, {{a0}}, {{a1}}, {{a2}};", kind, three, lambda a, b, c, g=get: abs(g(a) - g(b)) + c)
    case(f"shr.{kind} {{d0}}, {{a0}}, {{a1}};", kind, f"{kind} u32", lambda a, b, g=get, n=n: g(a) >> min(b, n))
    for word, test in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
        compare = eval(f"lambda a, b: a {test} b")
        case(
            f"setp.{word}.{kind} {{d0}}, {{a0}}, {{a1}};",
            "pred",
            two,
            lambda a, b, g=get, c=compare: int(c(g(a), g(b))),
        )
    if kind[0] == "s":
        case(f"neg.{kind} {{d0}}, {{a0}};", kind, kind, lambda a: -a)
        case(f"abs.{kind} {{d0}}, {{a0}};", kind, kind, lambda a, g=get: abs(g(a)))
case(
    "add.sat.s32 {d0}, {a0}, {a1};",
    "s32",
    "s32 s32",
    lambda a, b: max(-(2**31), min(2**31 - 1, signed(a, 32) + signed(b, 32))),
)
case(
    "sub.sat.s32 {d0}, {a0}, {a1};",
    "s32",
    "s32 s32",
    lambda a, b: max(-(2**31), min(2**31 - 1, signed(a, 32) - signed(b, 32))),
)
case("mad.hi.sat.s32 {d0}, {a0}, {a1}, {a2};", "s32", "s32 s32 s32",
     lambda a, b, c: max(-(2**31), min(2**31 - 1, (signed(a, 32) * signed(b, 32) >> 32) + signed(c, 32))))  # fmt: skip
for word, test in (("lo", "<"), ("ls", "<="), ("hi", ">"), ("hs", ">=")):
    case(f"setp.{word}.u32 {{d0}}, {{a0}}, {{a1}};", "pred", "u32 u32", eval(f"lambda a, b: int(a {test} b)"))
case("setp.lt.and.s32 {d0}|{d1}, {a0}, {a1}, {a2};", "pred pred", "s32 s32 pred",
     lambda a, b, p: (int(signed(a, 32) < signed(b, 32)) & (p != 0), int(signed(a, 32) >= signed(b,
     32)) & (p != 0)))  # fmt: skip
case("set.lt.u32.s32 {d0}, {a0}, {a1};", "u32", "s32 s32", lambda a, b: -1 if signed(a, 32) < signed(b, 32) else 0)
case(
    "set.gt.f32.s32 {d0}, {a0}, {a1};",
    "f32",
    "s32 s32",
    lambda a, b: 0x3F800000 if signed(a, 32) > signed(b, 32) else 0,
)
CARRY = "add.cc.u32 {d0}, {a0}, {a1}; addc.u32 {d1}, {a2}, {a3};"
case(CARRY, "u32 u32", "u32 u32 u32 u32", lambda a, b, c, d: (a + b, c + d + (a + b >> 32)))
case("sub.cc.u32 {d0}, {a0}, {a1}; subc.u32 {d1}, {a2}, {a3};", "u32 u32", "u32 u32 u32 u32",
     lambda a, b, c, d: (a - b, c - d - (a < b)))  # fmt: skip
case("addc.u32 {d0}, {a0}, {a1};".replace("addc", "add.cc.u32 {d0}, {a0}, {a1}; addc"), "u32", "u32 u32",
     lambda a, b: a + b + (a + b >> 32))  # fmt: skip
case("subc.u32 {d0}, {a0}, {a1};".replace("subc", "sub.cc.u32 {d0}, {a0}, {a1}; subc"), "u32", "u32 u32",
     lambda a, b: a - b - (a < b))  # fmt: skip
case("mad.lo.cc.u32 {d0}, {a0}, {a1}, {a2}; madc.hi.u32 {d1}, {a0}, {a1}, {a3};", "u32 u32", "u32 u32 u32 u32",
     lambda a, b, c, d: (a * b + c, (a * b >> 32) + d + ((a * b & 0xFFFFFFFF) + c >> 32)))  # fmt: skip
for kind in ("u32", "s32"):
    low = (lambda v: signed(v & 0xFFFFFF, 24)) if kind == "s32" else (lambda v: v & 0xFFFFFF)
    case(f"mul24.lo.{kind} {{d0}}, {{a0}}, {{a1}};", kind, f"{kind} {kind}", lambda a, b, g=low: g(a) * g(b))
    case(f"mul24.hi.{kind} {{d0}}, {{a0}}, {{a1}};", kind, f"{kind} {kind}", lambda a, b, g=low: g(a) * g(b) >> 16)
    case(
        f"mad24.lo.{kind} {{d0}}, {{a0}}, {{a1}}, {{a2}};",
        kind,
        f"{kind} {kind} {kind}",
        lambda a, b, c, g=low: g(a) * g(b) + c,
    )


def dot(a: int, b: int, c: int, x: str, y: str, count: int, half: int = 0) -> int:
    width = 32 // count
    gx, gy = of(f"{x[0]}{width}"), of(f"{y[0]}8")
    return c + sum(gx(a >> width * j) * gy(b >> 8 * (j + half)) for j in range(count))


for x in ("u32", "s32"):
    for y in ("u32", "s32"):
        case(
            f"dp4a.{x}.{y} {{d0}}, {{a0}}, {{a1}}, {{a2}};",
            "u32",
            "u32 u32 u32",
            lambda a, b, c, x=x, y=y: dot(a, b, c, x, y, 4),
        )
case("dp2a.lo.s32.u32 {d0}, {a0}, {a1}, {a2};", "u32", "u32 u32 u32", lambda a, b, c: dot(a, b, c, "s", "u", 2))
case("dp2a.hi.s32.u32 {d0}, {a0}, {a1}, {a2};", "u32", "u32 u32 u32", lambda a, b, c: dot(a, b, c, "s", "u", 2, 2))

# Bits

for n in (16, 32, 64):
    kind, two = f"b{n}", f"b{n} b{n}"
    case(f"and.{kind} {{d0}}, {{a0}}, {{a1}};", kind, two, lambda a, b: a & b)
    case(f"or.{kind} {{d0}}, {{a0}}, {{a1}};", kind, two, lambda a, b: a | b)
    case(f"xor.{kind} {{d0}}, {{a0}}, {{a1}};", kind, two, lambda a, b: a ^ b)
    case(f"not.{kind} {{d0}}, {{a0}};", kind, kind, lambda a: ~a)
    case(f"cnot.{kind} {{d0}}, {{a0}};", kind, kind, lambda a: int(a == 0))
    case(f"shl.{kind} {{d0}}, {{a0}}, {{a1}};", kind, f"{kind} u32", lambda a, b, n=n: a << b if b < n else 0)
    case(f"mov.{kind} {{d0}}, {{a0}};", kind, kind, lambda a: a)
    case(f"selp.{kind} {{d0}}, {{a0}}, {{a1}}, {{a2}};", kind, f"{two} pred", lambda a, b, p: a if p else b)
    case(
        f"slct.{kind}.s32 {{d0}}, {{a0}}, {{a1}}, {{a2}};",
        kind,
        f"{two} s32",
        lambda a, b, c: a if signed(c, 32) >= 0 else b,
    )
case("slct.b32.f32 {d0}, {a0}, {a1}, {a2};", "b32", "b32 b32 f32",
     lambda a, b, c: a if not math.isnan(decode(c, "f32")) and decode(c, "f32") >= 0 else b)  # fmt: skip
case("and.pred {d0}, {a0}, {a1};", "pred", "pred pred", lambda a, b: int(bool(a) and bool(b)))
case("not.pred {d0}, {a0};", "pred", "pred", lambda a: int(not a))
case("mov.b32 {d0}, {{{a0}, {a1}}};", "b32", "b16 b16", lambda a, b: a | b << 16)
case("mov.b64 {{{d0}, {d1}}}, {a0};", "b32 b32", "b64", lambda a: (a, a >> 32))
case("cvta.to.global.u64 {d0}, {a0};", "u64", "u64", lambda a: a)


def lookup(a: int, b: int, c: int, table: int) -> int:
    return sum((table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i for i in range(32))


for table in (0x96, 0xE8, 0xCA, 0x1, 0xFE):
    case(
        f"lop3.b32 {{d0}}, {{a0}}, {{a1}}, {{a2}}, {table};",
        "b32",
        "b32 b32 b32",
        lambda a, b, c, t=table: lookup(a, b, c, t),
    )
for mode in ("wrap", "clamp"):
    amount = (lambda c: c & 31) if mode == "wrap" else (lambda c: min(c, 32))
    case(
        f"shf.l.{mode}.b32 {{d0}}, {{a0}}, {{a1}}, {{a2}};",
        "b32",
        "b32 b32 u32",
        lambda a, b, c, m=amount: ((b << 32 | a) << m(c)) >> 32,
    )
    case(
        f"shf.r.{mode}.b32 {{d0}}, {{a0}}, {{a1}}, {{a2}};",
        "b32",
        "b32 b32 u32",
        lambda a, b, c, m=amount: (b << 32 | a) >> m(c),
    )
    case(f"bmsk.{mode}.b32 {{d0}}, {{a0}}, {{a1}};", "b32", "u32 u32", lambda a, b, m=amount: ((1 << m(b)) - 1) << m(a))
for n in (32, 64):
    kind = f"b{n}"
    case(f"popc.{kind} {{d0}}, {{a0}};", "u32", kind, lambda a: a.bit_count())
    case(f"clz.{kind} {{d0}}, {{a0}};", "u32", kind, lambda a, n=n: n - a.bit_length())
    case(f"brev.{kind} {{d0}}, {{a0}};", kind, kind, lambda a, n=n: int(f"{a:0{n}b}"[::-1], 2))

    def highest(a: int, n: int, is_signed: bool, amount: bool) -> int:
        if is_signed and a >> (n - 1):
            a = unsigned(~a, n)
        return -1 if not a else (n - a.bit_length() if amount else a.bit_length() - 1)

    for s in "us":
        case(f"bfind.{s}{n} {{d0}}, {{a0}};", "u32", kind, lambda a, n=n, s=s: highest(a, n, s == "s", False))
        case(f"bfind.shiftamt.{s}{n} {{d0}}, {{a0}};", "u32", kind, lambda a, n=n, s=s: highest(a, n, s == "s", True))

        def field(a: int, b: int, c: int, n: int, is_signed: bool) -> int:
            # The guide's loop over the bits.
            position, length = b & 255, c & 255
            most = n - 1
            sign = 0 if not is_signed or length == 0 else a >> min(position + length - 1, most) & 1
            result = 0
            for i in range(n):
                bit = a >> (position + i) & 1 if i < length and position + i <= most else sign
                result |= bit << i
            return result

        case(
            f"bfe.{s}{n} {{d0}}, {{a0}}, {{a1}}, {{a2}};",
            kind,
            f"{kind} u32 u32",
            lambda a, b, c, n=n, s=s: field(a, b, c, n, s == "s"),
        )

    def inserted(a: int, b: int, c: int, d: int, n: int) -> int:
        position, length = c & 255, d & 255
        for i in range(length):
            if position + i <= n - 1:
                b = b & ~(1 << (position + i)) | (a >> i & 1) << (position + i)
        return b

    case(
        f"bfi.{kind} {{d0}}, {{a0}}, {{a1}}, {{a2}}, {{a3}};",
        kind,
        f"{kind} {kind} u32 u32",
        lambda a, b, c, d, n=n: inserted(a, b, c, d, n),
    )


def permuted(a: int, b: int, selectors: Sequence[int]) -> int:
    both, result = b << 32 | a, 0
    for j, selector in enumerate(selectors):
        byte = both >> 8 * (selector & 7) & 255
        if selector & 8:
            byte = 255 if byte >> 7 else 0
        result |= byte << 8 * j
    return result


case(
    "prmt.b32 {d0}, {a0}, {a1}, {a2};",
    "b32",
    "b32 b32 u32",
    lambda a, b, c: permuted(a, b, [c >> 4 * j & 15 for j in range(4)]),
)
PRMT = {"f4e": ["0123", "1234", "2345", "3456"], "b4e": ["0765", "1076", "2107", "3210"], "rc8": ["0000", "1111",
    "2222", "3333"],
        "ecl": ["0123", "1123", "2223", "3333"], "ecr": ["0000", "0111", "0122", "0123"], "rc16": ["0101", "2323",
        "0101", "2323"]}  # fmt: skip
for mode, table_of in PRMT.items():
    case(f"prmt.b32.{mode} {{d0}}, {{a0}}, {{a1}}, {{a2}};", "b32", "b32 b32 u32",
         lambda a, b, c, t=table_of: permuted(a, b, [int(x) for x in t[c & 3]]))  # fmt: skip

# Floating point


def flushed(bits: int, kind: str) -> int:
    value = decode(bits, kind)
    tiny = isinstance(value, Fraction) and abs(value) < Fraction(2) ** FORMATS[kind][1]
    return bits & (1 << (BITS[kind] - 1)) if tiny else bits


def arithmetic(name: str, kind: str, mode: str, operands: Sequence[int]) -> int:
    """IEEE 754: one rounding of the exact result; zeros and infinities as it says."""
    values = [decode(b, kind) for b in operands]
    if any(isinstance(v, float) and math.isnan(v) for v in values):
        return CANONICAL[kind]
    if name == "sub":
        operands = [operands[0], operands[1] ^ 1 << (BITS[kind] - 1)]
        return arithmetic("add", kind, mode, operands)
    signs = [negative(b, kind) for b in operands]
    infinite = [isinstance(v, float) for v in values]
    if name in ("mul", "div"):
        sign = signs[0] != signs[1]
        a, b = values
        infinity = encode(-math.inf if sign else math.inf, kind)
        zero = encode(Fraction(0), kind, zero_sign=int(sign))
        if name == "mul":
            if any(infinite):
                return CANONICAL[kind] if 0 in values else infinity
            return encode(a * b, kind, mode, int(sign)) if a * b else zero
        if infinite[0]:
            return CANONICAL[kind] if infinite[1] else infinity
        if infinite[1]:
            return zero
        if b == 0:
            return CANONICAL[kind] if a == 0 else infinity
        return encode(a / b, kind, mode) if a else zero
    if name == "fma":
        a, b, c = values
        product_sign = signs[0] != signs[1]
        if infinite[0] or infinite[1]:
            if 0 in (a, b) or (infinite[2] and product_sign != signs[2]):
                return CANONICAL[kind]
            return encode(-math.inf if product_sign else math.inf, kind)
        if infinite[2]:
            return encode(c, kind)
        return _sum(a * b, c, product_sign, signs[2], kind, mode)
    if name == "add":
        a, b = values
        if infinite[0] and infinite[1]:
            return encode(a, kind) if signs[0] == signs[1] else CANONICAL[kind]
        if any(infinite):
            return encode(a if infinite[0] else b, kind)
        return _sum(a, b, signs[0], signs[1], kind, mode)
    if name == "sqrt":
        if values[0] == 0:
            return operands[0]
        if signs[0]:
            return CANONICAL[kind]
        if infinite[0]:
            return operands[0]
        low, left = root(values[0])
        return encode(low, kind, mode, sticky=left)
    if name == "rcp":
        one = encode(Fraction(1), kind)
        return arithmetic("div", kind, mode, [one, operands[0]])
    raise AssertionError(name)


def _sum(a: Fraction, b: Fraction, sign_a: bool, sign_b: bool, kind: str, mode: str) -> int:
    if a + b == 0:
        both = sign_a and sign_b and a == 0 and b == 0
        return encode(Fraction(0), kind, zero_sign=int(both or ((sign_a != sign_b or a != 0) and mode == "rm")))
    return encode(a + b, kind, mode)


def smaller(name: str, kind: str, a: int, b: int, nan: bool = False) -> int:
    x, y = decode(a, kind), decode(b, kind)
    x_nan, y_nan = (isinstance(v, float) and math.isnan(v) for v in (x, y))
    if (x_nan and y_nan) or (nan and (x_nan or y_nan)):
        return CANONICAL[kind]
    if x_nan or y_nan:
        return b if x_nan else a
    if x == y:
        return a if negative(a, kind) == (name == "min") else b
    return a if (x < y) == (name == "min") else b


COUNT = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "sqrt": 1, "rcp": 1}
for kind, names in (
    ("f32", COUNT),
    ("f64", COUNT),
    ("f16", ("add", "sub", "mul", "fma")),
    ("bf16", ("add", "sub", "mul", "fma")),
):
    for name in names:
        modes = ("rn", "rz", "rm", "rp") if kind in ("f32", "f64") else ("rn",)
        for mode in modes:
            places = ", ".join(f"{{a{j}}}" for j in range(COUNT[name]))
            case(f"{name}.{mode}.{kind} {{d0}}, {places};", kind, " ".join([kind] * COUNT[name]),
                 lambda *v, name=name, kind=kind, mode=mode: arithmetic(name, kind, mode, v))  # fmt: skip
case("mad.rn.f32 {d0}, {a0}, {a1}, {a2};", "f32", "f32 f32 f32", lambda *v: arithmetic("fma", "f32", "rn", v))
for name in ("add", "mul", "fma"):
    places = ", ".join(f"{{a{j}}}" for j in range(COUNT[name]))
    inputs = " ".join(["f32"] * COUNT[name])
    case(f"{name}.rn.ftz.f32 {{d0}}, {places};", "f32", inputs,
         lambda *v, name=name: flushed(arithmetic(name, "f32", "rn", [flushed(x, "f32") for x in v]),
         "f32"))  # fmt: skip

    def clamped(*v: int, name: str = name) -> int:
        bits = arithmetic(name, "f32", "rn", v)
        value = decode(bits, "f32")
        if (isinstance(value, float) and math.isnan(value)) or value <= 0:
            return 0
        return 0x3F800000 if value >= 1 else bits

    case(f"{name}.rn.sat.f32 {{d0}}, {places};", "f32", inputs, clamped)
for kind in ("f16", "bf16", "f32", "f64"):
    top = 1 << (BITS[kind] - 1)
    case(f"neg.{kind} {{d0}}, {{a0}};", kind, kind, lambda a, t=top: a ^ t)
    case(f"abs.{kind} {{d0}}, {{a0}};", kind, kind, lambda a, t=top: a & ~t)
    for name in ("min", "max"):
        case(
            f"{name}.{kind} {{d0}}, {{a0}}, {{a1}};",
            kind,
            f"{kind} {kind}",
            lambda a, b, n=name, k=kind: smaller(n, k, a, b),
        )
        if kind != "f64":
            case(
                f"{name}.NaN.{kind} {{d0}}, {{a0}}, {{a1}};",
                kind,
                f"{kind} {kind}",
                lambda a, b, n=name, k=kind: smaller(n, k, a, b, True),
            )
    for word in ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"):

        def holds(a: int, b: int, word: str = word, kind: str = kind) -> int:
            x, y = decode(a, kind), decode(b, kind)
            unordered = any(isinstance(v, float) and math.isnan(v) for v in (x, y))
            if word in ("num", "nan"):
                return int(unordered == (word == "nan"))
            if unordered:
                return int(word.endswith("u"))
            return int({"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}[word[:2]])

        case(f"setp.{word}.{kind} {{d0}}, {{a0}}, {{a1}};", "pred", f"{kind} {kind}", holds)
for kind in ("f32", "f64"):
    top = 1 << (BITS[kind] - 1)
    case(f"copysign.{kind} {{d0}}, {{a0}}, {{a1}};", kind, f"{kind} {kind}", lambda a, b, t=top: b & ~t | a & t)
    for word in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):

        def is_a(a: int, word: str = word, kind: str = kind) -> int:
            value = decode(a, kind)
            finite = isinstance(value, Fraction)
            nan = isinstance(value, float) and math.isnan(value)
            normal = isinstance(value, Fraction) and abs(value) >= Fraction(2) ** FORMATS[kind][1]
            table = {"finite": finite, "infinite": not finite and not nan, "number": not nan, "notanumber": nan,
                     "normal": normal, "subnormal": finite and not normal and value != 0}  # fmt: skip
            return int(table[word])

        case(f"testp.{word}.{kind} {{d0}}, {{a0}};", "pred", kind, is_a)


def pairwise(function: Oracle) -> Oracle:
    def both(*v: int) -> int:
        low, high = function(*(x & 0xFFFF for x in v)), function(*(x >> 16 for x in v))
        assert isinstance(low, int)
        assert isinstance(high, int)
        return low | high << 16

    return both


for kind in ("f16", "bf16"):
    for name in ("add", "mul", "fma"):
        places = ", ".join(f"{{a{j}}}" for j in range(COUNT[name]))
        case(f"{name}.rn.{kind}x2 {{d0}}, {places};", f"{kind}x2", " ".join([f"{kind}x2"] * COUNT[name]),
             pairwise(lambda *v, n=name, k=kind: arithmetic(n, k, "rn", v)))  # fmt: skip
    case(
        f"max.{kind}x2 {{d0}}, {{a0}}, {{a1}};",
        f"{kind}x2",
        f"{kind}x2 {kind}x2",
        pairwise(lambda a, b, k=kind: smaller("max", k, a, b)),
    )
    case(f"neg.{kind}x2 {{d0}}, {{a0}};", f"{kind}x2", f"{kind}x2", lambda a: a ^ 0x80008000)

    def rectified(a: int, b: int, c: int, kind: str = kind) -> int:
        bits = arithmetic("fma", kind, "rn", (a, b, c))
        value = decode(bits, kind)
        return bits if (isinstance(value, float) and math.isnan(value)) or value > 0 else 0

    case(f"fma.rn.relu.{kind} {{d0}}, {{a0}}, {{a1}}, {{a2}};", kind, f"{kind} {kind} {kind}", rectified)

# Conversions


def whole(value: Fraction, mode: str) -> int:
    low = value.numerator // value.denominator
    rest = value - low
    if mode == "rni":
        return low + int(rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low & 1))
    return {"rmi": low, "rpi": low + (rest > 0), "rzi": low + (rest > 0 and value < 0)}[mode]


def to_integer(a: int, source: str, target: str, mode: str) -> int:
    value, n = decode(a, source), int(target[1:])
    low, high = (-(1 << (n - 1)), (1 << (n - 1)) - 1) if target[0] == "s" else (0, (1 << n) - 1)
    if isinstance(value, float):
        if math.isnan(value):
            return 1 << (n - 1) if source == "f64" or n == 64 else 0
        return high if value > 0 else low
    return max(low, min(high, whole(value, mode)))


for source in ("f16", "f32", "f64"):
    for target in ("s16", "u16", "s32", "u32", "s64", "u64"):
        for mode in ("rni", "rzi", "rmi", "rpi"):
            case(f"cvt.{mode}.{target}.{source} {{d0}}, {{a0}};", target, source,
                 lambda a, s=source, t=target, m=mode: to_integer(a, s, t, m))  # fmt: skip
for source in ("s16", "u16", "s32", "u32", "s64", "u64"):
    for target in ("f16", "f32", "f64"):
        if source.endswith("64") and target == "f16":
            continue
        for mode in ("rn",) if source.endswith("64") or target == "f16" else ("rn", "rz", "rm", "rp"):
            case(f"cvt.{mode}.{target}.{source} {{d0}}, {{a0}};", target, source,
                 lambda a, s=source, t=target, m=mode: encode(Fraction(of(s)(a)), t, m))  # fmt: skip
    for target in ("s16", "u16", "s32", "u32", "s64", "u64"):
        case(f"cvt.{target}.{source} {{d0}}, {{a0}};", target, source, lambda a, s=source: of(s)(a))
        if target != source:
            n = int(target[1:])
            low, high = (-(1 << (n - 1)), (1 << (n - 1)) - 1) if target[0] == "s" else (0, (1 << n) - 1)
            case(f"cvt.sat.{target}.{source} {{d0}}, {{a0}};", target, source,
                 lambda a, s=source, low=low, high=high: max(low, min(high, of(s)(a))))  # fmt: skip


def reformat(a: int, source: str, target: str, mode: str) -> int:
    value = decode(a, source)
    return (
        encode(value, target, mode, zero_sign=int(negative(a, source)))
        if value != 0
        else encode(Fraction(0), target, zero_sign=int(negative(a, source)))
    )


for source, target, modes in (("f32", "f16", ("rn", "rz")), ("f32", "bf16", ("rn", "rz")), ("f64", "f32", ("rn",
    "rz", "rm", "rp")),
                              ("f64", "f16", ("rn",))):  # fmt: skip
    for mode in modes:
        case(
            f"cvt.{mode}.{target}.{source} {{d0}}, {{a0}};",
            target,
            source,
            lambda a, s=source, t=target, m=mode: reformat(a, s, t, m),
        )
for source, target in (("f16", "f32"), ("f16", "f64"), ("f32", "f64"), ("bf16", "f32")):
    case(
        f"cvt.{target}.{source} {{d0}}, {{a0}};", target, source, lambda a, s=source, t=target: reformat(a, s, t, "rn")
    )
for mode in ("rni", "rzi", "rmi", "rpi"):

    def integral(a: int, mode: str = mode) -> int:
        value = decode(a, "f32")
        if isinstance(value, float):
            return encode(value, "f32")
        return encode(Fraction(whole(value, mode)), "f32", zero_sign=int(negative(a, "f32")))

    case(f"cvt.{mode}.f32.f32 {{d0}}, {{a0}};", "f32", "f32", integral)
for kind in ("f16", "bf16"):
    case(f"cvt.rn.{kind}x2.f32 {{d0}}, {{a0}}, {{a1}};", f"{kind}x2", "f32 f32",
         lambda a, b, k=kind: reformat(b, "f32", k, "rn") | reformat(a, "f32", k, "rn") << 16)  # fmt: skip
