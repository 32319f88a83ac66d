// What NVIDIA's compiler includes for host code before a file's first line; its compiler for kernels alone does not.
#pragma once
#if __has_include(<math.h>) && __has_include(<stdlib.h>) && __has_include(<string.h>) && __has_include(<time.h>)
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#endif
