import jax
from d2l import jax as d2l
