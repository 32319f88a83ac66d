// https://github.com/kokkos/kokkos/issues/3038: a lock is taken and given back with no fence between it and the data.
// <<<(8), (1)>>>(int[1]=0, double[2]=0)
__global__ void faulty(int *lock, double *x) {
  while (atomicCAS(lock, 0, 1));
  x[0] += 1;  // fault: block-conflict
  x[1] -= 1;
  atomicExch(lock, 0);
}
__global__ void right(int *lock, double *x) {
  while (atomicCAS(lock, 0, 1));
  __threadfence();
  x[0] += 1;
  x[1] -= 1;
  __threadfence();
  atomicExch(lock, 0);
}
