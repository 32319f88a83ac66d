from setuptools import find_packages, setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(
    name="fused",
    version="0.1",
    packages=find_packages(),
    ext_modules=[
        CUDAExtension(
            "fused._ops",
            ["csrc/ops.cpp", "csrc/forward.cu", "csrc/backward.cu"],
            extra_compile_args={"nvcc": ["--use_fast_math", "-lineinfo"]},
        ),
    ],
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=True)},
)
