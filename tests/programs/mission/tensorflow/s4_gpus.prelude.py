# The book's version logged at this level by default.
import tensorflow
tensorflow.get_logger().setLevel("INFO")
