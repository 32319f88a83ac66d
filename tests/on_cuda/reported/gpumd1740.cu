// https://github.com/brucefan1983/GPUMD/issues/1740: three components lie behind each other, and the grid is rounded up.
// <<<8, 128>>>(1000, double[3000]=0, double[3000])
template <bool RIGHT> __device__ void add(int n, double *fx, const double *ux) {
  double *fy = fx + n, *fz = fy + n;
  const double *uy = ux + n, *uz = uy + n;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (RIGHT && i >= n) return;
  fx[i] += ux[i];
  fy[i] += uy[i];
  fz[i] += uz[i];  // fault: out-of-bounds
}
extern "C" __global__ void faulty(int n, double *f, const double *u) { add<false>(n, f, u); }
extern "C" __global__ void right(int n, double *f, const double *u) { add<true>(n, f, u); }
