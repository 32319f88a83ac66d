// What every .cu sees before its first line, as with NVIDIA's compiler.
#pragma once
#ifndef __CUDACC__
#define __CUDACC__
#endif
#define __NVCC__ 1
#define __CUDA_RUNTIME_H__ // NVIDIA's guard
#define CCCL_DISABLE_NVFP8_SUPPORT 1 // of which `cuda_fp8.h` here has a part
#include <stddef.h>
#include <float.h> // whose FLT_MAX and INT_MAX sources use without asking for them
#include <limits.h>
#if __has_include(<bits/move.h>)
#include <bits/move.h> // NVIDIA's compiler knows std::move and std::forward itself, and libcu++ counts on that
#endif
#include "../host_defines.h"
#include "../vector_types.h"
#include "builtins.h"
#include "math.h"
#include "intrinsics.h"
#include "simd.h"
#include "atomics.h"
#include "../cuda_runtime_api.h"
#ifdef __CUDA__
__device__ inline void *operator new(size_t, void *place) noexcept { return place; } // beside <new>'s, which are the host's
__device__ inline void *operator new[](size_t, void *place) noexcept { return place; }
__device__ inline void operator delete(void *, void *) noexcept {}
__device__ inline void operator delete[](void *, void *) noexcept {}
#endif
