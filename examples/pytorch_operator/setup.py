# SPDX-License-Identifier: MIT
"""Compiles the operator with the variants of the released models, and packs the library's headers, of
which others are compiled on first use. For a GPU as well where there are nvcc and a PyTorch with CUDA,
and either a GPU or TORCH_CUDA_ARCH_LIST to say what to compile for."""
import importlib.util
import os
import shutil
from pathlib import Path

import torch
from setuptools import setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

HERE = Path(__file__).resolve().parent
# A copy of this folder somewhere else says where the library's headers are.
include = Path(os.environ.get("MHLA_INCLUDE", HERE.parents[1] / "include"))
if not (include / "mhla").is_dir():
    raise SystemExit(f"There is no {include / 'mhla'}: name the folder of mhla's headers in MHLA_INCLUDE.")
for_cuda = bool(torch.version.cuda and CUDA_HOME and
                (torch.cuda.is_available() or os.environ.get("TORCH_CUDA_ARCH_LIST")))

spec = importlib.util.spec_from_file_location("variants", HERE / "src/mhla_torch/variants.py")
variants = importlib.util.module_from_spec(spec)
spec.loader.exec_module(variants)


class Build(BuildExtension):
    """Writes a source for each variant, so that all are compiled at once, and packs the headers."""

    def build_extensions(self):
        folder = Path(self.build_temp).resolve() / "variants"
        folder.mkdir(parents=True, exist_ok=True)
        sources = self.extensions[0].sources
        for index, variant in enumerate(variants.PREBUILT):
            texts = {f"variant_{index}.cpp": variants.source(variant, prebuilt=True)}
            if for_cuda:
                texts[f"gpu_{index}.cu"] = variants.cuda_source(variant)
            for name, text in texts.items():
                path = folder / name
                if not path.exists() or path.read_text() != text:
                    path.write_text(text)
                sources.append(str(path))
        super().build_extensions()

    def run(self):
        super().run()
        package = Path(self.build_lib).resolve() / "mhla_torch"
        shutil.copytree(include / "mhla", package / "include/mhla", dirs_exist_ok=True)
        shutil.copy(HERE / "variant.hpp", package / "include")


flags = ["-O2", "-std=c++20", "-DMHLA_KERNELS_ELSEWHERE"]
settings = dict(include_dirs=[str(include), str(HERE)],
                depends=["variant.hpp", *map(str, include.rglob("*.*h*"))])
if for_cuda:
    extension = CUDAExtension("mhla_torch._C", ["operator.cpp", "kernels.cpp"], libraries=["cublas"],
                              extra_compile_args={"cxx": flags + ["-DMHLA_TORCH_CUDA"],
                                                  "nvcc": flags}, **settings)
else:
    extension = CppExtension("mhla_torch._C", ["operator.cpp", "kernels.cpp"], extra_compile_args=flags,
                             **settings)

setup(packages=["mhla_torch"], package_dir={"": "src"}, ext_modules=[extension],
      cmdclass={"build_ext": Build})
