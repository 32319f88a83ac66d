"""`make hardware`: what a real GPU says to what the emulation claims, in stages that each leave their result.

A stage is a file of `stages/`, and listing that folder is the registry. Its items run on two sides: natively on the
GPU, and emulated as the same model. Each item runs in a process of its own, so that one which crashes or hangs costs
itself alone. Nothing of the emulation is installed on the native side. `--stand-in MODEL` lets the emulation stand in
for the GPU.
"""
