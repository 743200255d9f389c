# SPDX-License-Identifier: MIT
"""Compiles the operator: for a GPU as well where there are nvcc and a PyTorch with CUDA, and either a
GPU or TORCH_CUDA_ARCH_LIST to say what to compile for."""
import os
from pathlib import Path

import torch
from setuptools import setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

# A copy of this folder somewhere else says where the library's headers are.
include = Path(os.environ.get("MHLA_INCLUDE", Path(__file__).resolve().parents[2] / "include"))
if not (include / "mhla").is_dir():
    raise SystemExit(f"There is no {include / 'mhla'}: name the folder of mhla's headers in MHLA_INCLUDE.")
for_cuda = bool(torch.version.cuda and CUDA_HOME and
                (torch.cuda.is_available() or os.environ.get("TORCH_CUDA_ARCH_LIST")))

flags = ["-O2", "-std=c++20"]
settings = dict(include_dirs=[str(include)],
                depends=["variants.hpp", *map(str, include.rglob("*.*h*"))])
if for_cuda:
    extension = CUDAExtension("mhla_torch._C", ["operator.cpp", "kernels.cu"], libraries=["cublas"],
                              extra_compile_args={"cxx": flags + ["-DMHLA_TORCH_CUDA"],
                                                  "nvcc": flags}, **settings)
else:
    extension = CppExtension("mhla_torch._C", ["operator.cpp"], extra_compile_args=flags, **settings)

setup(packages=["mhla_torch"], package_dir={"": "src"}, ext_modules=[extension],
      cmdclass={"build_ext": BuildExtension})
