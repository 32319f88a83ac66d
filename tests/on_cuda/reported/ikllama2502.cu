// https://github.com/ikawrakow/ik_llama.cpp/pull/2502: mmq_ids_helper reads store[] of other lanes (racecheck).
// <<<4, 32>>>(int[256], int[256]=0)
template <bool Waits> __device__ void select(const int *ids, int *out) {
  __shared__ int store[256];
  int kept = 0, lane = threadIdx.x;
  for (int first = 0; first < 256; first += 32) {
    bool mine = ids[first + lane] % 4 == blockIdx.x;
    unsigned found = __ballot_sync(~0u, mine);
    if (mine) store[kept + __popc(found & (1u << lane) - 1)] = first + lane;
    kept += __popc(found);
  }
  if (Waits) __syncwarp();
  for (int i = lane; i < kept; i += 32) out[store[i]] = blockIdx.x;  // fault: warp-race
}
__global__ void faulty(const int *ids, int *out) { select<false>(ids, out); }
__global__ void right(const int *ids, int *out) { select<true>(ids, out); }
