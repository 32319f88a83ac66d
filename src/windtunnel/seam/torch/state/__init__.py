"""What an emulation knows while it runs: the machine, devices, threads, late copies, order, memory and its history."""
