# SPDX-License-Identifier: MIT
"""Compiles a variant that the extension does not have, once, and keeps it."""
import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from . import variants

HERE = Path(__file__).parent
FLAGS = ["-O2", "-std=c++20", "-fPIC", "-shared"]
_operators = torch.ops.mhla_torch
_known = set(_operators.variants())
_libraries = []  # stay loaded
_lock = threading.Lock()


def ready(variant):
    """Sees to it that there is a variant."""
    if variant in _known:
        return
    with _lock:
        if variant not in _known:
            library = ctypes.CDLL(str(_compiled(variant)))
            _libraries.append(library)
            _operators.add_variant(variant, ctypes.addressof(ctypes.c_char.in_dll(library, "mhla_torch_variant")))
            _known.add(variant)


def cache():
    """Where variants are kept: MHLA_TORCH_CACHE, or a folder of the user's."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mhla_torch"
    return Path(os.environ.get("MHLA_TORCH_CACHE", default))


def _include():
    packed = HERE / "include"
    return packed if packed.is_dir() else HERE.parents[3] / "include"


def _gpu_flags():
    """For the GPU at hand, or those that TORCH_CUDA_ARCH_LIST names, as PyTorch's own extensions."""
    from torch.utils import cpp_extension
    return ["-O2", "-std=c++20", "-shared", "-Xcompiler=-fPIC", "-DMHLA_TORCH_CUDA", "--cudart=shared", "-lcublas",
            *cpp_extension._get_cuda_arch_flags()], f"{cpp_extension.CUDA_HOME}/bin/nvcc"


def _compiled(variant):
    """The shared library of a variant. Its name has a hash of all it is made of."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or "c++"
    flags, texts, takes = FLAGS, {"variant.cpp": variants.source(variant)}, "some 5 seconds"
    if _operators.is_for_gpu():
        flags, compiler = _gpu_flags()
        texts["kernels.cu"] = variants.cuda_source(variant)
        takes = "up to a minute"
    headers = _include()
    folders = [headers] if (headers / "variant.hpp").exists() else [headers, HERE.parents[1]]
    digest = hashlib.sha256(" ".join([compiler, *flags, *texts.values()]).encode())
    for folder in folders:
        for header in sorted(folder.rglob("*.[hi][pn][pc]")):
            digest.update(header.read_bytes())
    library = cache() / f"{digest.hexdigest()[:24]}.so"
    if library.exists():
        return library
    cache().mkdir(parents=True, exist_ok=True)
    print(f"mhla_torch: compiles {variant} for this machine: {takes}, once", file=sys.stderr, flush=True)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=cache()) as temporary:
        made = Path(temporary, "variant.so")
        for name, text in texts.items():
            Path(temporary, name).write_text(text)
        sources = [str(Path(temporary, name)) for name in texts]
        command = [compiler, *flags, *(f"-I{folder}" for folder in folders), *sources, "-o", str(made)]
        try:
            run = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            raise RuntimeError(f"mhla_torch: {variant} takes a C++20 compiler, and {compiler} does not run: "
                               f"{error}; set CXX") from None
        if run.returncode != 0:
            said = [line for line in run.stderr.splitlines() if "mhla: " in line]
            if said:  # the library's own sentence
                raise ValueError("mhla: " + said[0].split("mhla: ", 1)[1])
            raise RuntimeError(f"mhla_torch: {' '.join(command)} failed:\n{run.stderr}")
        os.replace(made, library)  # another process may have made it meanwhile
    print(f"mhla_torch: compiled in {time.perf_counter() - begin:.1f} s, kept in {library}", file=sys.stderr,
          flush=True)
    return library
