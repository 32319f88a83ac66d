// Integers of 8 and 16 bits, four or two in a word ("SIMD Intrinsics" of CUDA's Math API).
#pragma once

template <typename T, typename F> WT_D unsigned int windtunnel_parts(unsigned int a, unsigned int b, F f) {
  constexpr int bits = 8 * sizeof(T);
  const unsigned int mask = (1u << bits) - 1;
  unsigned int made = 0;
  for (int at = 0; at < 32; at += bits) made |= ((unsigned int)f((T)(a >> at), (T)(b >> at)) & mask) << at;
  return made;
}
template <typename T> WT_D int windtunnel_saturated(int value) {
  constexpr int bits = 8 * sizeof(T);
  const int least = (T)-1 < (T)0 ? -(1 << (bits - 1)) : 0, most = (T)-1 < (T)0 ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;
  return value < least ? least : value > most ? most : value;
}

// A row is a function's name between `__v` and the number of parts, the sign of these, and what is done to each.
#define WT_SIMD(NAME, SIGN, WHAT)                                                                                      \
  WT_D unsigned int __v##NAME##2(unsigned int a, unsigned int b) {                                                     \
    typedef SIGN short T;                                                                                              \
    return windtunnel_parts<T>(a, b, [](T x, T y) { return (int)(WHAT); });                                            \
  }                                                                                                                    \
  WT_D unsigned int __v##NAME##4(unsigned int a, unsigned int b) {                                                     \
    typedef SIGN char T;                                                                                               \
    return windtunnel_parts<T>(a, b, [](T x, T y) { return (int)(WHAT); });                                            \
  }
#define WT_SIMD_COMPARED(NAME, SIGN, WHAT) WT_SIMD(cmp##NAME, SIGN, (WHAT) ? -1 : 0) WT_SIMD(set##NAME, SIGN, (WHAT) ? 1 : 0)
WT_SIMD(add, unsigned, x + y)
WT_SIMD(addss, signed, windtunnel_saturated<T>(x + y))
WT_SIMD(addus, unsigned, windtunnel_saturated<T>(x + y))
WT_SIMD(sub, unsigned, x - y)
WT_SIMD(subss, signed, windtunnel_saturated<T>(x - y))
WT_SIMD(subus, unsigned, windtunnel_saturated<T>(x - y))
WT_SIMD(mins, signed, x < y ? x : y)
WT_SIMD(minu, unsigned, x < y ? x : y)
WT_SIMD(maxs, signed, x > y ? x : y)
WT_SIMD(maxu, unsigned, x > y ? x : y)
WT_SIMD(absdiffs, signed, x > y ? x - y : y - x)
WT_SIMD(absdiffu, unsigned, x > y ? x - y : y - x)
WT_SIMD(avgs, signed, (x + y + (x + y >= 0)) >> 1)
WT_SIMD(avgu, unsigned, (x + y + 1) >> 1)
WT_SIMD(haddu, unsigned, (x + y) >> 1)
WT_SIMD_COMPARED(eq, unsigned, x == y)
WT_SIMD_COMPARED(ne, unsigned, x != y)
WT_SIMD_COMPARED(ges, signed, x >= y)
WT_SIMD_COMPARED(geu, unsigned, x >= y)
WT_SIMD_COMPARED(gts, signed, x > y)
WT_SIMD_COMPARED(gtu, unsigned, x > y)
WT_SIMD_COMPARED(les, signed, x <= y)
WT_SIMD_COMPARED(leu, unsigned, x <= y)
WT_SIMD_COMPARED(lts, signed, x < y)
WT_SIMD_COMPARED(ltu, unsigned, x < y)
#undef WT_SIMD_COMPARED
#undef WT_SIMD

#define WT_SIMD(PARTS, KIND)                                                                                           \
  WT_D unsigned int __vneg##PARTS(unsigned int a) { return __vsub##PARTS(0, a); }                                      \
  WT_D unsigned int __vnegss##PARTS(unsigned int a) { return __vsubss##PARTS(0, a); }                                  \
  WT_D unsigned int __vabs##PARTS(unsigned int a) { return __vabsdiffs##PARTS(a, 0); }                                 \
  WT_D unsigned int __vabsss##PARTS(unsigned int a) { return __vmaxs##PARTS(a, __vnegss##PARTS(a)); }                  \
  WT_D unsigned int __vsads##PARTS(unsigned int a, unsigned int b) {                                                   \
    unsigned int all = __vabsdiffs##PARTS(a, b), sum = 0;                                                              \
    for (int at = 0; at < 32; at += 32 / PARTS) sum += (unsigned KIND)(all >> at);                                     \
    return sum;                                                                                                        \
  }                                                                                                                    \
  WT_D unsigned int __vsadu##PARTS(unsigned int a, unsigned int b) {                                                   \
    unsigned int all = __vabsdiffu##PARTS(a, b), sum = 0;                                                              \
    for (int at = 0; at < 32; at += 32 / PARTS) sum += (unsigned KIND)(all >> at);                                     \
    return sum;                                                                                                        \
  }
WT_SIMD(2, short)
WT_SIMD(4, char)
#undef WT_SIMD

// Three numbers at once, of a word or of two halves, and the larger of two sums (from CUDA 12 on).
#define WT_THREE(S, TYPE)                                                                                           \
  WT_D TYPE __vimax3_##S##32(TYPE a, TYPE b, TYPE c) { a = a > b ? a : b; return a > c ? a : c; }                      \
  WT_D TYPE __vimin3_##S##32(TYPE a, TYPE b, TYPE c) { a = a < b ? a : b; return a < c ? a : c; }                      \
  WT_D TYPE __vimax_##S##32_relu(TYPE a, TYPE b) { a = a > b ? a : b; return a > 0 ? a : 0; }                          \
  WT_D TYPE __vimin_##S##32_relu(TYPE a, TYPE b) { a = a < b ? a : b; return a > 0 ? a : 0; }                          \
  WT_D TYPE __viaddmax_##S##32(TYPE a, TYPE b, TYPE c) { a = (TYPE)((unsigned)a + (unsigned)b); return a > c ? a : c; } \
  WT_D TYPE __viaddmin_##S##32(TYPE a, TYPE b, TYPE c) { a = (TYPE)((unsigned)a + (unsigned)b); return a < c ? a : c; } \
  WT_D unsigned int __vimax3_##S##16x2(unsigned int a, unsigned int b, unsigned int c) { return __vmax##S##2(__vmax##S##2(a, b), c); } \
  WT_D unsigned int __vimin3_##S##16x2(unsigned int a, unsigned int b, unsigned int c) { return __vmin##S##2(__vmin##S##2(a, b), c); }
WT_THREE(s, int)
WT_THREE(u, unsigned int)
#undef WT_THREE
