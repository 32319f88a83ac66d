// OpenMP with one thread, as its specification allows: clang's wheel has no library of it, and the pragmas are not read.
#pragma once
#include <chrono>
typedef struct { int held; } omp_lock_t;
static inline int omp_get_max_threads(void) { return 1; }
static inline int omp_get_num_threads(void) { return 1; }
static inline int omp_get_thread_num(void) { return 0; }
static inline int omp_get_num_procs(void) { return 1; }
static inline int omp_get_thread_limit(void) { return 1; }
static inline int omp_in_parallel(void) { return 0; }
static inline int omp_get_level(void) { return 0; }
static inline int omp_get_dynamic(void) { return 0; }
static inline int omp_get_nested(void) { return 0; }
static inline void omp_set_num_threads(int) {}
static inline void omp_set_dynamic(int) {}
static inline void omp_set_nested(int) {}
static inline void omp_init_lock(omp_lock_t *lock) { lock->held = 0; }
static inline void omp_destroy_lock(omp_lock_t *) {}
static inline void omp_set_lock(omp_lock_t *lock) { lock->held = 1; }
static inline void omp_unset_lock(omp_lock_t *lock) { lock->held = 0; }
static inline int omp_test_lock(omp_lock_t *lock) { return lock->held ? 0 : (lock->held = 1); }
static inline double omp_get_wtime(void) { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
