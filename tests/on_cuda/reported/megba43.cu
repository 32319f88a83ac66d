// https://github.com/MegviiRobot/MegBA/issues/43: misaligned address where a number is odd.
// <<<1, 32>>>(double[128], double[32], 9)
__global__ void faulty(const double *x, double *y, int n) {
  int i = threadIdx.x;
  const double *rest = x + n;
  double2 v = reinterpret_cast<const double2 *>(rest)[i];  // fault: misaligned
  y[i] = v.x * v.x + v.y * v.y;
}
__global__ void right(const double *x, double *y, int n) {
  int i = threadIdx.x;
  const double *rest = x + n + n % 2;
  double2 v = reinterpret_cast<const double2 *>(rest)[i];
  y[i] = v.x * v.x + v.y * v.y;
}
