# The versions of the book drew random numbers in an older order and gave parameters as a FrozenDict.
import flax
import jax
jax.config.update("jax_threefry_partitionable", False)
flax.config.update("flax_return_frozendict", True)
