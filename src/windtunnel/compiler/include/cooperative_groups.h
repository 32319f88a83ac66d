// Cooperative groups: blocks, tiles of a warp, coalesced threads, and the grid.
#pragma once
#include "cuda_runtime.h"
#ifdef __CUDA__
extern "C" __device__ unsigned long long cudaCGGetIntrinsicHandle(unsigned int scope);  // 1: the grid; 0 where it may not wait
extern "C" __device__ unsigned int cudaCGSynchronize(unsigned long long handle, unsigned int flags);
namespace cooperative_groups {
namespace __v1 { // as NVIDIA's, of which libcu++ declares two classes
#define WT_M __device__ __forceinline__

struct thread_block {
  WT_M static void sync() { __syncthreads(); }
  WT_M static unsigned int thread_rank() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
  WT_M static unsigned int size() { return blockDim.x * blockDim.y * blockDim.z; }
  WT_M static unsigned int num_threads() { return size(); }
  WT_M static dim3 group_index() { return blockIdx; }
  WT_M static dim3 thread_index() { return threadIdx; }
  WT_M static dim3 group_dim() { return blockDim; }
  WT_M static dim3 dim_threads() { return blockDim; }
};
WT_M thread_block this_thread_block() { return thread_block(); }

// Lanes of a warp by a mask; the tile's size is known when it is compiled, or 0.
template <unsigned int Size> struct warp_lanes {
  unsigned int mask, first;
  WT_M static unsigned int lane() { return thread_block::thread_rank() & 31; }
  WT_M unsigned int thread_rank() const { return Size ? lane() - first : __popc(mask & ((1u << lane()) - 1)); }
  WT_M unsigned int size() const { return Size ? Size : __popc(mask); }
  WT_M unsigned int num_threads() const { return size(); }
  WT_M unsigned int meta_group_rank() const { return Size ? thread_block::thread_rank() / Size : 0; }
  WT_M unsigned int meta_group_size() const { return Size ? (thread_block::size() + Size - 1) / Size : 1; }
  WT_M void sync() const { __syncwarp(mask); }
  WT_M unsigned int source(unsigned int rank) const { return Size ? first + rank % Size : __fns(mask, rank); }
  template <class T> WT_M T shfl(T v, int rank) const { return Size ? __shfl_sync(mask, v, rank, Size ? Size : 32) : __shfl_sync(mask, v, source(rank)); }
  template <class T> WT_M T shfl_down(T v, unsigned int n) const { return Size ? __shfl_down_sync(mask, v, n, Size ? Size : 32) : __shfl_sync(mask, v, thread_rank() + n < size() ? source(thread_rank() + n) : lane()); }
  template <class T> WT_M T shfl_up(T v, unsigned int n) const { return Size ? __shfl_up_sync(mask, v, n, Size ? Size : 32) : __shfl_sync(mask, v, thread_rank() >= n ? source(thread_rank() - n) : lane()); }
  template <class T> WT_M T shfl_xor(T v, unsigned int n) const { return __shfl_xor_sync(mask, v, n, Size ? Size : 32); }
  WT_M int any(int p) const { return __any_sync(mask, p); }
  WT_M int all(int p) const { return __all_sync(mask, p); }
  WT_M unsigned int ballot(int p) const { unsigned int b = __ballot_sync(mask, p); return Size ? b >> first : pack(b); }
  template <class T> WT_M unsigned int match_any(T v) const { unsigned int b = __match_any_sync(mask, v); return Size ? b >> first : pack(b); }
  WT_M static unsigned int __fns(unsigned int m, unsigned int n) { for (unsigned int i = 0; i < 32; i++) if (m >> i & 1 && !n--) return i; return 32; }
  template <class T, class Op> WT_M T combined(T v, Op op) const {
    for (unsigned int n = Size / 2; n > 0; n /= 2) v = op(v, shfl_xor(v, n));
    return v;
  }
  template <class T, class Op> WT_M T scanned(T v, Op op) const {
    for (unsigned int n = 1; n < Size; n *= 2) { T other = shfl_up(v, n); if (thread_rank() >= n) v = op(other, v); }
    return v;
  }
  template <class T> WT_M T one_before(T v) const { return shfl_up(v, 1); }
  WT_M unsigned int pack(unsigned int b) const { unsigned int r = 0, at = 0; for (unsigned int i = 0; i < 32; i++) if (mask >> i & 1) r |= (b >> i & 1) << at++; return r; }
};
typedef warp_lanes<0> coalesced_group;

// Tiles of several warps meet at a barrier of their own and tell each other values through shared memory, where a
// kernel's block_tile_memory is only a promise of room.
template <unsigned int MaxBlockSize = 1024> struct block_tile_memory { char room[MaxBlockSize / 32 * 16]; };
template <unsigned int MaxBlockSize> WT_M thread_block this_thread_block(block_tile_memory<MaxBlockSize> &) { return thread_block(); }
template <unsigned int Size> struct warps_tile {
  WT_M static unsigned int thread_rank() { return thread_block::thread_rank() % Size; }
  WT_M static unsigned int size() { return Size; }
  WT_M static unsigned int num_threads() { return Size; }
  WT_M static unsigned int meta_group_rank() { return thread_block::thread_rank() / Size; }
  WT_M static unsigned int meta_group_size() { return (thread_block::size() + Size - 1) / Size; }
  WT_M static void sync() {
    const unsigned int number = meta_group_rank() < 15 ? 15 - meta_group_rank() : 17;  // 0 is the block's, 16 the grid's
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(Size) : "memory");
  }
  WT_M static warp_lanes<32> warp() { return warp_lanes<32>{0xffffffffu, 0}; }
  WT_M static unsigned int first() { return meta_group_rank() * (Size / 32); }
  template <class T> WT_M static T *cells() {
    __shared__ __attribute__((aligned(16))) char room[32 * sizeof(T)];
    return (T *)room;
  }
  // The value of each warp, as lane `lane` of it has it.
  template <class T> WT_M static const T *told(T v, unsigned int lane) {
    T *cell = cells<T>() + first();
    sync();
    if (warp_lanes<0>::lane() == lane) cell[thread_rank() / 32] = v;
    sync();
    return cell;
  }
  template <class T> WT_M static T shfl(T v, unsigned int rank) { return told(v, rank % 32)[rank / 32 % (Size / 32)]; }
  template <class T, class Op> WT_M static T combined(T v, Op op) {
    const T *of = told(warp().combined(v, op), 0);
    T all = of[0];
    for (unsigned int i = 1; i < Size / 32; i++) all = op(all, of[i]);
    return all;
  }
  template <class T, class Op> WT_M static T scanned(T v, Op op) {
    v = warp().scanned(v, op);
    const T *of = told(v, 31);
    for (int i = (int)(thread_rank() / 32) - 1; i >= 0; i--) v = op(of[i], v);
    return v;
  }
  template <class T> WT_M static T one_before(T v) {
    const T *of = told(v, 31);
    T before = warp().shfl_up(v, 1);
    return thread_rank() % 32 || !thread_rank() ? before : of[thread_rank() / 32 - 1];
  }
  WT_M static int any(int p) { return combined((int)(p != 0), [](int a, int b) { return a | b; }); }
  WT_M static int all(int p) { return combined((int)(p != 0), [](int a, int b) { return a & b; }); }
};
template <bool OfWarps, unsigned int Size> struct tile_base { typedef warp_lanes<Size> type; };
template <unsigned int Size> struct tile_base<true, Size> { typedef warps_tile<Size> type; };
template <unsigned int Size> using tile_lanes = typename tile_base<(Size > 32), Size>::type;
template <unsigned int Size, class Parent = void> struct thread_block_tile : tile_lanes<Size> {
  static_assert(Size <= 1024 && (Size & (Size - 1)) == 0, "a tile's size is a power of two");
};
template <unsigned int Size> struct thread_block_tile<Size, void> : tile_lanes<Size> {
  thread_block_tile() = default;
  template <class Parent> WT_M thread_block_tile(const thread_block_tile<Size, Parent> &tile) : tile_lanes<Size>(tile) {}
};
// Any of these, known when the kernel runs: a block, or lanes of a warp.
struct thread_group {
  unsigned int mask;  // 0: the block
  bool tile;
  WT_M thread_group(const thread_block &) : mask(0), tile(false) {}
  template <unsigned int Size> WT_M thread_group(const warp_lanes<Size> &lanes) : mask(lanes.mask), tile(Size != 0) {}
  WT_M thread_group(unsigned int lanes) : mask(lanes), tile(true) {}
  WT_M unsigned int thread_rank() const { return mask ? __popc(mask & ((1u << warp_lanes<0>::lane()) - 1)) : thread_block::thread_rank(); }
  WT_M unsigned int size() const { return mask ? __popc(mask) : thread_block::size(); }
  WT_M unsigned int num_threads() const { return size(); }
  WT_M bool is_valid() const { return true; }
  WT_M void sync() const { if (mask) __syncwarp(mask); else __syncthreads(); }
};
WT_M thread_group tiled_partition(const thread_group &, unsigned int size) {
  return thread_group(size == 32 ? 0xffffffffu : ((1u << size) - 1) << warp_lanes<0>::lane() / size * size);
}
WT_M coalesced_group coalesced_threads() { return coalesced_group{__activemask(), 0}; }
template <unsigned int Size> WT_M void place(warp_lanes<Size> &lanes) {
  lanes.first = warp_lanes<Size>::lane() / Size * Size;
  lanes.mask = Size == 32 ? 0xffffffffu : ((1u << (Size & 31)) - 1) << lanes.first;
}
template <unsigned int Size> WT_M void place(warps_tile<Size> &) {}
template <unsigned int Size, class Parent> WT_M thread_block_tile<Size, Parent> tiled_partition(const Parent &) {
  thread_block_tile<Size, Parent> made;
  place(made);
  return made;
}
template <class Group> WT_M coalesced_group binary_partition(const Group &g, bool p) { unsigned int b = __ballot_sync(g.mask, p); return coalesced_group{p ? b : g.mask & ~b, 0}; }
template <class Group, class Label> WT_M coalesced_group labeled_partition(const Group &g, Label label) { return coalesced_group{__match_any_sync(g.mask, label), 0}; }

struct grid_group {
  unsigned long long handle;
  WT_M bool is_valid() const { return handle != 0; }
  WT_M void sync() const { if (!is_valid()) __trap(); cudaCGSynchronize(handle, 0); }
  WT_M static unsigned long long thread_rank() { return (unsigned long long)block_rank() * thread_block::size() + thread_block::thread_rank(); }
  WT_M static unsigned long long size() { return (unsigned long long)num_blocks() * thread_block::size(); }
  WT_M static unsigned long long num_threads() { return size(); }
  WT_M static unsigned int block_rank() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }
  WT_M static unsigned int num_blocks() { return gridDim.x * gridDim.y * gridDim.z; }
  WT_M static dim3 group_dim() { return gridDim; }
  WT_M static dim3 dim_blocks() { return gridDim; }
  WT_M static dim3 block_index() { return blockIdx; }
};
WT_M grid_group this_grid() { return grid_group{cudaCGGetIntrinsicHandle(1)}; }
template <class Group> WT_M void sync(const Group &g) { g.sync(); }

// ---------------------------------------------------------------- reductions
template <class T> struct plus { WT_M T operator()(T a, T b) const { return a + b; } };
template <class T> struct less { WT_M T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T> struct greater { WT_M T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T> struct bit_and { WT_M T operator()(T a, T b) const { return a & b; } };
template <class T> struct bit_or { WT_M T operator()(T a, T b) const { return a | b; } };
template <class T> struct bit_xor { WT_M T operator()(T a, T b) const { return a ^ b; } };
template <unsigned int Size, class Parent, class T, class Op> WT_M T reduce(const thread_block_tile<Size, Parent> &g, T v, Op op) { return g.combined(v, op); }
template <class T, class Op> WT_M T reduce(const coalesced_group &g, T v, Op op) {
  T all = g.shfl(v, 0);
  for (unsigned int i = 1; i < g.size(); i++) all = op(all, g.shfl(v, i));
  return all;
}
template <unsigned int Size, class Parent, class T, class Op> WT_M T inclusive_scan(const thread_block_tile<Size, Parent> &g, T v, Op op) { return g.scanned(v, op); }
template <unsigned int Size, class Parent, class T, class Op> WT_M T exclusive_scan(const thread_block_tile<Size, Parent> &g, T v, Op op) {
  T all = g.one_before(inclusive_scan(g, v, op));
  return g.thread_rank() ? all : T();
}
template <class Group, class T> WT_M T inclusive_scan(const Group &g, T v) { return inclusive_scan(g, v, plus<T>()); }
template <class Group, class T> WT_M T exclusive_scan(const Group &g, T v) { return exclusive_scan(g, v, plus<T>()); }

// ---------------------------------------------------------------- copies to shared memory by all threads of a group
template <class Group> WT_M void memcpy_async(const Group &g, void *to, const void *from, size_t size) {
  bool aligned = (((size_t)to | (size_t)from) & 3) == 0;
  for (size_t i = g.thread_rank(); i < size / 4; i += g.size()) {
    if (aligned && __isShared(to) && __isGlobal(from)) __pipeline_memcpy_async((unsigned int *)to + i, (const unsigned int *)from + i, 4);
    else __builtin_memcpy((unsigned int *)to + i, (const unsigned int *)from + i, 4);
  }
  for (size_t i = size / 4 * 4 + g.thread_rank(); i < size; i += g.size()) ((char *)to)[i] = ((const char *)from)[i];
  __pipeline_commit();
}
template <class Group> WT_M void wait(const Group &g) { __pipeline_wait_prior(0); g.sync(); }
template <unsigned int Stages, class Group> WT_M void wait_prior(const Group &g) { __pipeline_wait_prior(Stages); g.sync(); }
#undef WT_M
}  // namespace __v1
using namespace __v1;
}  // namespace cooperative_groups
#endif
