// What half precision and bfloat16 have alike: signs, order, functions and sums in memory, of the type WT_T, two of it
// (WT_T2) and its bits (WT_RAW). Included once for each; what is rounded stands with the type.
#ifndef WINDTUNNEL_SAME
#define WINDTUNNEL_SAME
namespace windtunnel {
template <class T, class U> struct same {};
template <class T> struct same<T, T> { typedef bool type; };
}  // namespace windtunnel
#endif
WT_HD WT_T __hneg(WT_T a) { return WT_T(WT_RAW{(unsigned short)(a.__x ^ 0x8000)}); }
WT_HD WT_T __habs(WT_T a) { return WT_T(WT_RAW{(unsigned short)(a.__x & 0x7fff)}); }
WT_HD WT_T2 __hneg2(WT_T2 a) { return WT_T2(__hneg(a.x), __hneg(a.y)); }
WT_HD WT_T2 __habs2(WT_T2 a) { return WT_T2(__habs(a.x), __habs(a.y)); }
WT_HD WT_T operator-(WT_T a) { return __hneg(a); }
WT_HD WT_T operator+(WT_T a) { return a; }
WT_HD WT_T &operator++(WT_T &a) { return a = __hadd(a, WT_T(1.f)); }
WT_HD WT_T &operator--(WT_T &a) { return a = __hsub(a, WT_T(1.f)); }
WT_HD WT_T2 operator-(WT_T2 a) { return __hneg2(a); }
WT_HD bool __hisnan(WT_T a) { return __builtin_isnan((float)a); }
WT_HD int __hisinf(WT_T a) { float f = a; return __builtin_isinf(f) ? (f < 0.f ? -1 : 1) : 0; }
// By value, not by address: a choice between two variables would put both into memory.
#define WT_EXTREME(name, instruction, before, sign) \
  WT_HD WT_T name(WT_T a, WT_T b) { \
    unsigned short x = a.__x, y = b.__x; \
    WT_ON_DEVICE(asm(instruction "." WT_NAME " %0, %1, %2;" : "=h"(x) : "h"(x), "h"(y)); return WT_T(WT_RAW{x});) \
    float f = a, g = b; \
    bool first = f != f ? false : g != g ? true : f before g || (f == g && !(x & 0x8000) == sign); \
    return WT_T(WT_RAW{(unsigned short)(first ? x : y)}); \
  } \
  WT_HD WT_T name##_nan(WT_T a, WT_T b) { \
    unsigned short x = a.__x, y = b.__x, z = name(a, b).__x; \
    return WT_T(WT_RAW{(unsigned short)(__hisnan(a) ? x : __hisnan(b) ? y : z)}); \
  } \
  WT_HD WT_T2 name##2(WT_T2 a, WT_T2 b) { return WT_T2(name(a.x, b.x), name(a.y, b.y)); }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define WT_ON_DEVICE(...) __VA_ARGS__
#else
#define WT_ON_DEVICE(...)
#endif
WT_EXTREME(__hmax, "max", >, true)
WT_EXTREME(__hmin, "min", <, false)
#undef WT_ON_DEVICE
#undef WT_EXTREME
// Of the type itself: what converts to it, as PyTorch's, converts to float as well.
#define WT_IF_SAME(T) typename windtunnel::same<T, WT_T>::type
WT_HD bool __heq(WT_T a, WT_T b) { return (float)a == (float)b; }
template <class T> WT_HD WT_IF_SAME(T) operator==(T a, T b) { return (float)a == (float)b; }
WT_HD WT_T2 __heq2(WT_T2 a, WT_T2 b) { return WT_T2(WT_T((float)a.x == (float)b.x ? 1.f : 0.f), WT_T((float)a.y == (float)b.y ? 1.f : 0.f)); }
WT_HD bool __hbeq2(WT_T2 a, WT_T2 b) { return (float)a.x == (float)b.x && (float)a.y == (float)b.y; }
WT_HD bool __hne(WT_T a, WT_T b) { return (float)a != (float)b; }
template <class T> WT_HD WT_IF_SAME(T) operator!=(T a, T b) { return (float)a != (float)b; }
WT_HD WT_T2 __hne2(WT_T2 a, WT_T2 b) { return WT_T2(WT_T((float)a.x != (float)b.x ? 1.f : 0.f), WT_T((float)a.y != (float)b.y ? 1.f : 0.f)); }
WT_HD bool __hbne2(WT_T2 a, WT_T2 b) { return (float)a.x != (float)b.x && (float)a.y != (float)b.y; }
WT_HD bool __hlt(WT_T a, WT_T b) { return (float)a < (float)b; }
template <class T> WT_HD WT_IF_SAME(T) operator<(T a, T b) { return (float)a < (float)b; }
WT_HD WT_T2 __hlt2(WT_T2 a, WT_T2 b) { return WT_T2(WT_T((float)a.x < (float)b.x ? 1.f : 0.f), WT_T((float)a.y < (float)b.y ? 1.f : 0.f)); }
WT_HD bool __hblt2(WT_T2 a, WT_T2 b) { return (float)a.x < (float)b.x && (float)a.y < (float)b.y; }
WT_HD bool __hle(WT_T a, WT_T b) { return (float)a <= (float)b; }
template <class T> WT_HD WT_IF_SAME(T) operator<=(T a, T b) { return (float)a <= (float)b; }
WT_HD WT_T2 __hle2(WT_T2 a, WT_T2 b) { return WT_T2(WT_T((float)a.x <= (float)b.x ? 1.f : 0.f), WT_T((float)a.y <= (float)b.y ? 1.f : 0.f)); }
WT_HD bool __hble2(WT_T2 a, WT_T2 b) { return (float)a.x <= (float)b.x && (float)a.y <= (float)b.y; }
WT_HD bool __hgt(WT_T a, WT_T b) { return (float)a > (float)b; }
template <class T> WT_HD WT_IF_SAME(T) operator>(T a, T b) { return (float)a > (float)b; }
WT_HD WT_T2 __hgt2(WT_T2 a, WT_T2 b) { return WT_T2(WT_T((float)a.x > (float)b.x ? 1.f : 0.f), WT_T((float)a.y > (float)b.y ? 1.f : 0.f)); }
WT_HD bool __hbgt2(WT_T2 a, WT_T2 b) { return (float)a.x > (float)b.x && (float)a.y > (float)b.y; }
WT_HD bool __hge(WT_T a, WT_T b) { return (float)a >= (float)b; }
template <class T> WT_HD WT_IF_SAME(T) operator>=(T a, T b) { return (float)a >= (float)b; }
WT_HD WT_T2 __hge2(WT_T2 a, WT_T2 b) { return WT_T2(WT_T((float)a.x >= (float)b.x ? 1.f : 0.f), WT_T((float)a.y >= (float)b.y ? 1.f : 0.f)); }
WT_HD bool __hbge2(WT_T2 a, WT_T2 b) { return (float)a.x >= (float)b.x && (float)a.y >= (float)b.y; }
WT_D WT_T hexp(WT_T a) { float x = a; return WT_T((float)(expf(x))); }
WT_D WT_T2 h2exp(WT_T2 a) { return WT_T2(hexp(a.x), hexp(a.y)); }
WT_D WT_T hexp2(WT_T a) { float x = a; return WT_T((float)(exp2f(x))); }
WT_D WT_T2 h2exp2(WT_T2 a) { return WT_T2(hexp2(a.x), hexp2(a.y)); }
WT_D WT_T hexp10(WT_T a) { float x = a; return WT_T((float)(exp10f(x))); }
WT_D WT_T2 h2exp10(WT_T2 a) { return WT_T2(hexp10(a.x), hexp10(a.y)); }
WT_D WT_T hlog(WT_T a) { float x = a; return WT_T((float)(logf(x))); }
WT_D WT_T2 h2log(WT_T2 a) { return WT_T2(hlog(a.x), hlog(a.y)); }
WT_D WT_T hlog2(WT_T a) { float x = a; return WT_T((float)(log2f(x))); }
WT_D WT_T2 h2log2(WT_T2 a) { return WT_T2(hlog2(a.x), hlog2(a.y)); }
WT_D WT_T hlog10(WT_T a) { float x = a; return WT_T((float)(log10f(x))); }
WT_D WT_T2 h2log10(WT_T2 a) { return WT_T2(hlog10(a.x), hlog10(a.y)); }
WT_D WT_T hsin(WT_T a) { float x = a; return WT_T((float)(sinf(x))); }
WT_D WT_T2 h2sin(WT_T2 a) { return WT_T2(hsin(a.x), hsin(a.y)); }
WT_D WT_T hcos(WT_T a) { float x = a; return WT_T((float)(cosf(x))); }
WT_D WT_T2 h2cos(WT_T2 a) { return WT_T2(hcos(a.x), hcos(a.y)); }
WT_D WT_T hsqrt(WT_T a) { float x = a; return WT_T((float)(sqrtf(x))); }
WT_D WT_T2 h2sqrt(WT_T2 a) { return WT_T2(hsqrt(a.x), hsqrt(a.y)); }
WT_D WT_T hrsqrt(WT_T a) { float x = a; return WT_T((float)(rsqrtf(x))); }
WT_D WT_T2 h2rsqrt(WT_T2 a) { return WT_T2(hrsqrt(a.x), hrsqrt(a.y)); }
WT_D WT_T hrcp(WT_T a) { float x = a; return WT_T((float)(1.f / x)); }
WT_D WT_T2 h2rcp(WT_T2 a) { return WT_T2(hrcp(a.x), hrcp(a.y)); }
WT_D WT_T hfloor(WT_T a) { float x = a; return WT_T((float)(floorf(x))); }
WT_D WT_T2 h2floor(WT_T2 a) { return WT_T2(hfloor(a.x), hfloor(a.y)); }
WT_D WT_T hceil(WT_T a) { float x = a; return WT_T((float)(ceilf(x))); }
WT_D WT_T2 h2ceil(WT_T2 a) { return WT_T2(hceil(a.x), hceil(a.y)); }
WT_D WT_T htrunc(WT_T a) { float x = a; return WT_T((float)(truncf(x))); }
WT_D WT_T2 h2trunc(WT_T2 a) { return WT_T2(htrunc(a.x), htrunc(a.y)); }
WT_D WT_T hrint(WT_T a) { float x = a; return WT_T((float)(rintf(x))); }
WT_D WT_T2 h2rint(WT_T2 a) { return WT_T2(hrint(a.x), hrint(a.y)); }
WT_D WT_T htanh(WT_T a) { float x = a; return WT_T((float)(tanhf(x))); }
WT_D WT_T2 h2tanh(WT_T2 a) { return WT_T2(htanh(a.x), htanh(a.y)); }
WT_D WT_T htanh_approx(WT_T a) { return WT_T(__tanhf(a)); }
WT_D WT_T2 h2tanh_approx(WT_T2 a) { return WT_T2(htanh_approx(a.x), htanh_approx(a.y)); }
WT_D WT_T atomicAdd(WT_T *p, WT_T v) {
  unsigned short *q = (unsigned short *)p, old = *(volatile unsigned short *)q, seen;
  while ((seen = atomicCAS(q, old, __hadd(WT_T(WT_RAW{old}), v).__x)) != old) old = seen;
  return WT_T(WT_RAW{old});
}
WT_D WT_T2 atomicAdd(WT_T2 *p, WT_T2 v) {
  unsigned int *q = (unsigned int *)p, old = *(volatile unsigned int *)q, seen;
  for (;;) {
    WT_T2 now; __builtin_memcpy(&now, &old, 4);
    WT_T2 sum = __hadd2(now, v);
    unsigned int word; __builtin_memcpy(&word, &sum, 4);
    if ((seen = atomicCAS(q, old, word)) == old) return now;
    old = seen;
  }
}
#undef WT_IF_SAME
