// https://github.com/ComputationalRadiationPhysics/picongpu/pull/4303: of a variable, one lane's is set and taken.
// <<<2, 64>>>(int[1]=0, int[128]=0)
__global__ void faulty(int *counter, int *places) {
  int lane = threadIdx.x % 32, leader = 31, place;  // fault: uninitialized-read
  if (lane == 0) place = atomicAdd(counter, 32);
  places[blockIdx.x * 64 + threadIdx.x] = __shfl_sync(0xffffffff, place, leader) + lane;
}
__global__ void right(int *counter, int *places) {
  int lane = threadIdx.x % 32, leader = 0, place;
  if (lane == 0) place = atomicAdd(counter, 32);
  places[blockIdx.x * 64 + threadIdx.x] = __shfl_sync(0xffffffff, place, leader) + lane;
}
