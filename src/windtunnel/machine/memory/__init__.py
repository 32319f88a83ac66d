"""Device and pinned memory over integers: PyTorch's caching allocators, the driver below them, no bytes.

`allocator` is the whole that others use; it is made of a `heap` (segments cut into blocks), `pending` (frees that wait
for other streams), `expandable` segments and the `cache` (what is given back, and when). `snapshot` describes an
allocator and starts one from a description.
"""
