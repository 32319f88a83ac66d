"""The Trainers of JAX, TensorFlow and MXNet: a file each, which imports no other framework."""
