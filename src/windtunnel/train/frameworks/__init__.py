"""The Trainers for JAX, TensorFlow and MXNet: one file each, which imports no other framework."""
