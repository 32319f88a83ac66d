"""The seam into TensorFlow: GPU i is logical CPU i + 1 under another name."""
