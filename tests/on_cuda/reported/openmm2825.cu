// https://github.com/openmm/openmm/issues/2825: what is left in a full buffer of the last warp is moved to its beginning.
// <<<1, 256>>>(int[1024]=1, int[1]=0, 1024)
enum { TILE = 32, BUFFER = 256 };
template <bool RIGHT> __device__ void find(const int *hit, int *out, int n) {
  __shared__ int buffer[BUFFER * 8];
  int lane = threadIdx.x % 32, *mine = buffer + BUFFER * (threadIdx.x / 32), count = 0;
  for (int base = 0; base < n; base += 32) {
    bool keep = hit[base + lane] != 0;
    unsigned who = __ballot_sync(0xffffffff, keep);
    if (keep) mine[count + __popc(who & ((1u << lane) - 1))] = base + lane;
    count += __popc(who);
    __syncwarp();
    if (count <= BUFFER - TILE) continue;
    int tiles = count / TILE;
    for (int j = 0; j < tiles; j++) atomicAdd(out, mine[lane + TILE * j]);
    __syncwarp();
    if (!RIGHT || tiles < BUFFER / TILE) mine[lane] = mine[lane + TILE * tiles];  // fault: shared-out-of-bounds
    count -= TILE * tiles;
    __syncwarp();
  }
}
extern "C" __global__ void faulty(const int *hit, int *out, int n) { find<false>(hit, out, n); }
extern "C" __global__ void right(const int *hit, int *out, int n) { find<true>(hit, out, n); }
