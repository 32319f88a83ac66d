// The types of cuSOLVER that PyTorch's headers name.
#pragma once
#include "cublas_v2.h"
typedef enum { CUSOLVER_STATUS_SUCCESS = 0 } cusolverStatus_t;
