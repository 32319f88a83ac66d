#pragma once
#ifdef __CUDA__
#include "windtunnel/prelude.h"
#else
#include "cuda_runtime_api.h"
#endif
