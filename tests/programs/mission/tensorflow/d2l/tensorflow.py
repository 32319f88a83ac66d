"""`d2l.tensorflow`, of which the GPU listings use nothing."""
