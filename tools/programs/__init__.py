"""Other people's programs on emulated GPUs."""
