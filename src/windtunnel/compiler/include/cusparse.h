// The types of cuSPARSE that PyTorch's headers name.
#pragma once
#include "cuda_runtime_api.h"
typedef struct cusparseContext *cusparseHandle_t;
typedef struct cusparseMatDescr *cusparseMatDescr_t;
typedef enum { CUSPARSE_STATUS_SUCCESS = 0 } cusparseStatus_t;
#define CUSPARSE_VERSION 12500
