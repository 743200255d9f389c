#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Takes the state dictionary out of files that training scripts write (.pth, .pt, .bin, also sharded
ones, .safetensors) and writes it as one .safetensors file:

    to_safetensors.py CHECKPOINT... OUT.safetensors [--key KEY] [--drop PATTERN]

Takes averaged weights (EMA) where a file has both, as the released evaluation scripts do, and says
so; --key chooses (state_dict, model, ema, generator...). Names lose what DistributedDataParallel,
FSDP and torch.compile put into them. --drop leaves out tensors whose names match.

No code of a file runs: of the objects in it only tensors are made, all others become empty ones."""
import argparse
import collections
import fnmatch
import json
import pickle
import re
import struct
import types
from pathlib import Path

import torch

# Averaged weights first.
KEYS = ["state_dict_ema", "model_ema", "ema", "state_dict", "model", "module"]
DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
          torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
          torch.uint8: "U8", torch.bool: "BOOL"}
# What PyTorch pickles tensors with.
TENSORS = {("collections", "OrderedDict"): collections.OrderedDict,
           ("torch", "Size"): torch.Size,
           ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
           ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter}


class Nothing:
    """In place of any other object: arguments of the command line, states of generators."""

    def __new__(cls, *_, **__):
        return super().__new__(cls)

    def __init__(self, *_, **__):
        pass

    def __setstate__(self, _):
        pass

    def __setitem__(self, _, __):
        pass

    def ignore(self, *_):
        pass

    append = extend = add = ignore


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        return getattr(torch, name) if is_dtype else TENSORS.get((module, name), Nothing)


def load(file):
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file
        return load_file(file)
    reader = types.SimpleNamespace(Unpickler=Unpickler, __name__="tensors_only",
                                   load=lambda f, **options: Unpickler(f, **options).load())
    return torch.load(file, map_location="cpu", pickle_module=reader, weights_only=False)


def is_state(value):
    return isinstance(value, dict) and bool(value) and all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in value.items())


def state_of(file, loaded, key):
    if key is None and is_state(loaded):
        return loaded
    choices = [k for k, value in loaded.items() if is_state(value)] if isinstance(loaded, dict) else []
    if key is None:
        ordered = [k for k in KEYS if k in choices] or choices
        if not ordered or (ordered is choices and len(choices) > 1):
            raise SystemExit(f"{file}: no state dictionary but {choices or 'none'}: choose with --key")
        key = ordered[0]
        print(f"{file}: takes {key} of {', '.join(choices)}")
    if key not in choices:
        raise SystemExit(f"{file}: {key} is no state dictionary; {', '.join(choices) or 'none'} is one")
    return loaded[key]


def plain(name):
    name = re.sub(r"(^|\.)(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.)", r"\1",
                  name)
    return re.sub(r"^(module\.|\.)+", "", re.sub(r"\.\.+", ".", name))


def write_safetensors(file, tensors):
    header, end = {}, 0
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise SystemExit(f"{name} is of {tensor.dtype}, which is not written")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            out.write(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, nargs="+")
    parser.add_argument("out", type=Path)
    parser.add_argument("--key")
    parser.add_argument("--drop", action="append", default=[], metavar="PATTERN")
    arguments = parser.parse_args()
    tensors = {}
    for file in arguments.checkpoint:
        for name, tensor in state_of(file, load(file), arguments.key).items():
            name = plain(name)
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in arguments.drop):
                continue
            if name in tensors:
                raise SystemExit(f"{file}: {name} is there twice")
            tensors[name] = tensor
    write_safetensors(arguments.out, tensors)
    print(f"{arguments.out}: {len(tensors)} tensors")


if __name__ == "__main__":
    main()
