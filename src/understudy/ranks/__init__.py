"""What the ranks of a job call of one another: the record, what is wrong with it, and PyTorch's format of it."""
