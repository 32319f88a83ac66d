// The atomic functions of one scope (WT_SCOPE), named by WT_NAME(name); included once for each.
#define WT_INTEGERS(T) \
  WT_D T WT_NAME(atomicAdd)(T *p, T v) { return __scoped_atomic_fetch_add(p, v, __ATOMIC_RELAXED, WT_SCOPE); } \
  WT_D T WT_NAME(atomicSub)(T *p, T v) { return __scoped_atomic_fetch_sub(p, v, __ATOMIC_RELAXED, WT_SCOPE); } \
  WT_D T WT_NAME(atomicMin)(T *p, T v) { return __scoped_atomic_fetch_min(p, v, __ATOMIC_RELAXED, WT_SCOPE); } \
  WT_D T WT_NAME(atomicMax)(T *p, T v) { return __scoped_atomic_fetch_max(p, v, __ATOMIC_RELAXED, WT_SCOPE); } \
  WT_D T WT_NAME(atomicAnd)(T *p, T v) { return __scoped_atomic_fetch_and(p, v, __ATOMIC_RELAXED, WT_SCOPE); } \
  WT_D T WT_NAME(atomicOr)(T *p, T v) { return __scoped_atomic_fetch_or(p, v, __ATOMIC_RELAXED, WT_SCOPE); } \
  WT_D T WT_NAME(atomicXor)(T *p, T v) { return __scoped_atomic_fetch_xor(p, v, __ATOMIC_RELAXED, WT_SCOPE); } \
  WT_D T WT_NAME(atomicExch)(T *p, T v) { return __scoped_atomic_exchange_n(p, v, __ATOMIC_RELAXED, WT_SCOPE); } \
  WT_D T WT_NAME(atomicCAS)(T *p, T compare, T v) { \
    __scoped_atomic_compare_exchange_n(p, &compare, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED, WT_SCOPE); \
    return compare; \
  }
WT_INTEGERS(int)
WT_INTEGERS(unsigned int)
WT_INTEGERS(long long)
WT_INTEGERS(unsigned long long)
#undef WT_INTEGERS
WT_D float WT_NAME(atomicAdd)(float *p, float v) { return __scoped_atomic_fetch_add(p, v, __ATOMIC_RELAXED, WT_SCOPE); }
WT_D double WT_NAME(atomicAdd)(double *p, double v) { return __scoped_atomic_fetch_add(p, v, __ATOMIC_RELAXED, WT_SCOPE); }
WT_D float WT_NAME(atomicExch)(float *p, float v) { return __int_as_float(WT_NAME(atomicExch)((int *)p, __float_as_int(v))); }
WT_D unsigned short WT_NAME(atomicCAS)(unsigned short *p, unsigned short compare, unsigned short v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
  unsigned short now;
  asm volatile("atom." WT_PTX_SCOPE ".cas.b16 %0, [%1], %2, %3;" : "=h"(now) : "l"(p), "h"(compare), "h"(v) : "memory");
  return now;
#else
  unsigned int *word = (unsigned int *)((size_t)p & ~(size_t)3), shift = ((size_t)p & 2) * 8, old = *(volatile unsigned int *)word;
  for (;;) {
    unsigned short now = (unsigned short)(old >> shift);
    if (now != compare) return now;
    unsigned int seen = WT_NAME(atomicCAS)(word, old, (old & ~(0xffffu << shift)) | (unsigned int)v << shift);
    if (seen == old) return now;
    old = seen;
  }
#endif
}
#if WT_SCOPE == __MEMORY_SCOPE_DEVICE
WT_D unsigned int WT_NAME(atomicInc)(unsigned int *p, unsigned int v) { return __nvvm_atom_inc_gen_ui(p, v); }
WT_D unsigned int WT_NAME(atomicDec)(unsigned int *p, unsigned int v) { return __nvvm_atom_dec_gen_ui(p, v); }
#else
#define WT_WRAPPING(name, how) \
  WT_D unsigned int WT_NAME(name)(unsigned int *p, unsigned int v) { \
    unsigned int before; \
    asm volatile("atom." WT_PTX_SCOPE "." how ".u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(v) : "memory"); \
    return before; \
  }
WT_WRAPPING(atomicInc, "inc")
WT_WRAPPING(atomicDec, "dec")
#undef WT_WRAPPING
#endif
#undef WT_NAME
#undef WT_SCOPE
#undef WT_PTX_SCOPE
