#pragma once
#ifdef __CUDA__
#include "windtunnel/prelude.h"
#else
#define __CUDA_RUNTIME_H__
#include "cuda_runtime_api.h"
#endif
