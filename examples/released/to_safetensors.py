#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Extracts the state dictionary from files of training scripts (.pth, .pt, .bin, also sharded ones,
.safetensors) and writes it as one .safetensors file:

    to_safetensors.py CHECKPOINT... OUT.safetensors [--key KEY] [--drop PATTERN]

Where a file has both plain and averaged weights (EMA) it takes the averaged ones, as the released
evaluation scripts do, and says so; --key chooses others (state_dict, model, ema, generator...). The
prefixes that DistributedDataParallel, FSDP and torch.compile add to names are removed. --drop leaves
out tensors whose names match.

No code in a file runs: it creates only tensors, and empty objects in place of all others."""
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
# The functions that tensors are pickled with.
TENSORS = {("collections", "OrderedDict"): collections.OrderedDict,
           ("torch", "Size"): torch.Size,
           ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
           ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter}


class Nothing:
    """Replaces any other object, such as command-line arguments or states of generators."""

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
            raise SystemExit(f"{file}: has the state dictionaries {', '.join(choices)}; choose one with --key"
                             if choices else f"{file}: has no state dictionary")
        key = ordered[0]
        print(f"{file}: takes the state dictionary {key} (of {', '.join(choices)})")
    if key not in choices:
        raise SystemExit(f"{file}: has no state dictionary {key}; --key must be "
                         f"{' or '.join(choices) or 'left out'}")
    return loaded[key]


def plain(name):
    name = re.sub(r"(^|\.)(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.)", r"\1",
                  name)
    return re.sub(r"^(module\.|\.)+", "", re.sub(r"\.\.+", ".", name))


def write_safetensors(file, tensors):
    header, end = {}, 0
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise SystemExit(f"{name} has dtype {tensor.dtype}, which cannot be written; convert it, or leave "
                             f"it out with --drop {name}")
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
                raise SystemExit(f"{file}: {name} is the name of two tensors of the given files, without "
                                 "prefixes; pass each tensor once")
            tensors[name] = tensor
    write_safetensors(arguments.out, tensors)
    print(f"{arguments.out}: {len(tensors)} tensors")


if __name__ == "__main__":
    main()
