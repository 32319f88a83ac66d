"""What nccl-tests prints of a collective, `name`, between the nodes pt01 and `other`."""

TABLE = """
# nccl-tests version 2.17.8 nccl-headers=23004 nccl-library=23004
# Collective test starting: {name}
# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid  13919 on       pt01 device  0 [0000:04:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  13920 on       pt01 device  1 [0000:04:02] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid  13919 on       {other} device  0 [0000:04:00] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid  13920 on       {other} device  1 [0000:04:02] NVIDIA H100 80GB HBM3
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     0.30    0.00    0.00      0     0.31    0.00    0.00      0
        1024           256     float     sum      -1    40.00    0.03    0.04      0    40.10    0.03    0.04      0
     1048576        262144     float     sum      -1    80.00   13.11   19.66      0    80.10   13.09   19.64    N/A
  1073741824     268435456     float     sum      -1   5000.0  214.75  322.12      0   5001.0  214.71  322.06      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 100.0
"""
