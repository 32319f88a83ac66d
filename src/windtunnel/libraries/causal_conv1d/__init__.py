"""causal_conv1d: short convolutions along the tokens, each channel by itself, in one kernel.

`causal_conv1d_fn` with an activation and with states before and after, and `causal_conv1d_update`. It keeps its
input and its weights, and computes the activation's gradient again. Texts packed behind one another (`seq_idx`) and
updates of a circular buffer or of chosen rows are refused.

Source of the interface: causal_conv1d 1.5.0, causal_conv1d/causal_conv1d_interface.py; of its sizes,
csrc/causal_conv1d.cpp.
"""

from .causal_conv1d_interface import causal_conv1d_fn, causal_conv1d_update

__version__ = "1.5.0"
__all__ = ["causal_conv1d_fn", "causal_conv1d_update"]
