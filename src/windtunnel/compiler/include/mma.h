// Warp matrix functions: products of 16x16x16 in half precision and bfloat16, and of 16x16x8 in TF32, by mma.sync.
// A fragment's elements lie as in mma.sync's operands; their order is not specified by CUDA.
#pragma once
#include "cuda_fp16.h"
#include "cuda_bf16.h"
#ifdef __CUDA__
namespace nvcuda {
namespace wmma {
#define WT_W static __device__ __forceinline__
struct row_major; struct col_major; struct matrix_a; struct matrix_b; struct accumulator;
namespace precision { struct tf32; }
enum layout_t { mem_row_major, mem_col_major };
template <class T> struct storage { typedef T type; };
template <> struct storage<precision::tf32> { typedef float type; };
template <class Use, int m, int n, int k, class T, class Layout = void> struct fragment {
  static_assert(m == 16 && n == 16 && (k == 16 || (k == 8 && sizeof(typename storage<T>::type) == 4)), "only 16x16x16 and, of tf32, 16x16x8 are emulated");
  typedef typename storage<T>::type element_type;
  // Of A the four or eight places of rows r, r+8 and columns c, c+8; B and the accumulator likewise.
  static constexpr int num_elements = __is_same(Use, accumulator) ? 8 : k * 16 / 32;
  static constexpr int num_storage_elements = num_elements;
  element_type x[num_elements];
};
WT_W int lane() { return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31; }
template <class F, class V> WT_W void fill_fragment(F &f, V v) { for (int i = 0; i < F::num_elements; i++) f.x[i] = v; }
WT_W float __float_to_tf32(float v) { unsigned int u; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(u) : "f"(v)); return __uint_as_float(u); }
// Where element i of a fragment lies in its matrix (PTX ISA, "Matrix Fragments for mma.m16n8k16" and "m16n8k8").
template <class Use, int k> WT_W int2 place(int i) {
  const int g = lane() >> 2, t = lane() & 3;
  if constexpr (__is_same(Use, accumulator)) return make_int2(g + 8 * (i >> 1 & 1), 8 * (i >> 2) + 2 * t + (i & 1));
  else if constexpr (k == 16) {
    if constexpr (__is_same(Use, matrix_a)) return make_int2(g + 8 * (i >> 1 & 1), 2 * t + (i & 1) + 8 * (i >> 2));
    else return make_int2(2 * t + (i & 1) + 8 * (i >> 1 & 1), g + 8 * (i >> 2));
  } else {
    if constexpr (__is_same(Use, matrix_a)) return make_int2(g + 8 * (i & 1), t + 4 * (i >> 1));
    else return make_int2(t + 4 * (i & 1), g + 8 * (i >> 1));
  }
}
template <class Use, int k, class T, class Layout, class P> WT_W void load_matrix_sync(fragment<Use, 16, 16, k, T, Layout> &f, const P *p, unsigned int ld) {
  for (int i = 0; i < f.num_elements; i++) { int2 at = place<Use, k>(i); f.x[i] = __is_same(Layout, row_major) ? p[at.x * ld + at.y] : p[at.y * ld + at.x]; }
}
template <int k, class T, class P> WT_W void load_matrix_sync(fragment<accumulator, 16, 16, k, T> &f, const P *p, unsigned int ld, layout_t layout) {
  for (int i = 0; i < f.num_elements; i++) { int2 at = place<accumulator, k>(i); f.x[i] = layout == mem_row_major ? p[at.x * ld + at.y] : p[at.y * ld + at.x]; }
}
template <int k, class T, class P> WT_W void store_matrix_sync(P *p, const fragment<accumulator, 16, 16, k, T> &f, unsigned int ld, layout_t layout) {
  for (int i = 0; i < f.num_elements; i++) { int2 at = place<accumulator, k>(i); (layout == mem_row_major ? p[at.x * ld + at.y] : p[at.y * ld + at.x]) = f.x[i]; }
}
template <class E> WT_W unsigned int packed(E a, E b) { unsigned int u; E two[2] = {a, b}; __builtin_memcpy(&u, two, 4); return u; }
#define WINDTUNNEL_MMA(TYPES) asm volatile("mma.sync.aligned.m16n8k16.row.col." TYPES " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};" \
    : "=f"(d.x[o]), "=f"(d.x[o + 1]), "=f"(d.x[o + 2]), "=f"(d.x[o + 3]) \
    : "r"(packed(a.x[0], a.x[1])), "r"(packed(a.x[2], a.x[3])), "r"(packed(a.x[4], a.x[5])), "r"(packed(a.x[6], a.x[7])), \
      "r"(packed(b.x[o], b.x[o + 1])), "r"(packed(b.x[o + 2], b.x[o + 3])), "f"((float)c.x[o]), "f"((float)c.x[o + 1]), "f"((float)c.x[o + 2]), "f"((float)c.x[o + 3]))
template <class LA, class LB> WT_W void mma_sync(fragment<accumulator, 16, 16, 16, float> &d, const fragment<matrix_a, 16, 16, 16, __half, LA> &a, const fragment<matrix_b, 16, 16, 16, __half, LB> &b, const fragment<accumulator, 16, 16, 16, float> &c) {
  for (int o = 0; o < 8; o += 4) WINDTUNNEL_MMA("f32.f16.f16.f32");
}
template <class LA, class LB> WT_W void mma_sync(fragment<accumulator, 16, 16, 16, float> &d, const fragment<matrix_a, 16, 16, 16, __nv_bfloat16, LA> &a, const fragment<matrix_b, 16, 16, 16, __nv_bfloat16, LB> &b, const fragment<accumulator, 16, 16, 16, float> &c) {
  for (int o = 0; o < 8; o += 4) WINDTUNNEL_MMA("f32.bf16.bf16.f32");
}
template <class LA, class LB> WT_W void mma_sync(fragment<accumulator, 16, 16, 16, __half> &d, const fragment<matrix_a, 16, 16, 16, __half, LA> &a, const fragment<matrix_b, 16, 16, 16, __half, LB> &b, const fragment<accumulator, 16, 16, 16, __half> &c) {
  for (int o = 0; o < 8; o += 4) {
    unsigned int low, high;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%8,%9};" : "=r"(low), "=r"(high)
      : "r"(packed(a.x[0], a.x[1])), "r"(packed(a.x[2], a.x[3])), "r"(packed(a.x[4], a.x[5])), "r"(packed(a.x[6], a.x[7])), "r"(packed(b.x[o], b.x[o + 1])), "r"(packed(b.x[o + 2], b.x[o + 3])), "r"(packed(c.x[o], c.x[o + 1])), "r"(packed(c.x[o + 2], c.x[o + 3])));
    __builtin_memcpy(&d.x[o], &low, 4); __builtin_memcpy(&d.x[o + 2], &high, 4);
  }
}
template <class LA, class LB> WT_W void mma_sync(fragment<accumulator, 16, 16, 8, float> &d, const fragment<matrix_a, 16, 16, 8, precision::tf32, LA> &a, const fragment<matrix_b, 16, 16, 8, precision::tf32, LB> &b, const fragment<accumulator, 16, 16, 8, float> &c) {
  for (int o = 0; o < 2; o++)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d.x[4 * o]), "=f"(d.x[4 * o + 1]), "=f"(d.x[4 * o + 2]), "=f"(d.x[4 * o + 3])
      : "r"(__float_as_uint(a.x[0])), "r"(__float_as_uint(a.x[1])), "r"(__float_as_uint(a.x[2])), "r"(__float_as_uint(a.x[3])), "r"(__float_as_uint(b.x[2 * o])), "r"(__float_as_uint(b.x[2 * o + 1])),
        "f"(c.x[4 * o]), "f"(c.x[4 * o + 1]), "f"(c.x[4 * o + 2]), "f"(c.x[4 * o + 3]));
}
#undef WINDTUNNEL_MMA
#undef WT_W
}  // namespace wmma
}  // namespace nvcuda
#endif
