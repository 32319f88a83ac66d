// Atomic functions. Those of half precision compare and swap its 16 bits, as older GPUs than Volta do a word.
#pragma once
#include "intrinsics.h"

#define WT_NAME(name) name
#define WT_SCOPE __MEMORY_SCOPE_DEVICE
#define WT_PTX_SCOPE "gpu"
#include "atomics_of_scope.h"
#define WT_NAME(name) name##_block
#define WT_SCOPE __MEMORY_SCOPE_WRKGRP
#define WT_PTX_SCOPE "cta"
#include "atomics_of_scope.h"
#define WT_NAME(name) name##_system
#define WT_SCOPE __MEMORY_SCOPE_SYSTEM
#define WT_PTX_SCOPE "sys"
#include "atomics_of_scope.h"
