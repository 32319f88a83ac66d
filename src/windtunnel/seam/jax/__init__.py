"""The seam into JAX: arrays of emulated GPUs belong to a second CPU client, which calls itself a GPU's."""
