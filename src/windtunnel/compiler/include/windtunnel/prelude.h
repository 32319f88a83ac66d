// What every .cu sees before its first line, as with NVIDIA's compiler.
#pragma once
#ifndef __CUDACC__
#define __CUDACC__
#endif
#define __NVCC__ 1
#include <stddef.h>
#include "../host_defines.h"
#include "../vector_types.h"
#include "builtins.h"
#include "math.h"
#include "intrinsics.h"
#include "atomics.h"
#include "../cuda_runtime_api.h"
