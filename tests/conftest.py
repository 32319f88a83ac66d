"""What holds for every test."""

import os

# Tests run in several processes, which share the cores already; threads of one that wait for the other's spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
