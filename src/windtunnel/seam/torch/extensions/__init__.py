"""Extensions of the program's own with CUDA C++ in them."""
