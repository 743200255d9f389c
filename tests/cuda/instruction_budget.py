#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Counts the instructions that a warp issues in the hot loops of kernels, in the code for sm_90.

    tests/cuda/instruction_budget.py --nvcc nvcc --nvdisasm nvdisasm [--only REGEX] [--update]

Compiles metered_kernels.cu and compares each kernel's count with its ceiling in
instruction_budget.txt: per tile, pair or vector, on the longest way through the loop that aligned,
unmasked tensors can take. A way is out of the question where it
  - reads or writes single elements of 16 bits, which is for tensors that are not aligned;
  - goes through a loop within the loop: what happens rarely is not unrolled;
  - calls a function: slow ways of divisions;
  - has an instruction that the kernel's line leaves out.
Where the unit is EXIT it is the whole kernel: loops are gone through once, if there is no way
around them.
nvdisasm is part of the CUDA Toolkit, and of the package nvidia-cuda-nvdisasm of PyPI.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
CEILINGS = HERE / "instruction_budget.txt"
RARE = re.compile(r"\b(LD[GS]?|ST[GS]?)\b\S*\.[US]16\b|\bCALL\b")
NEXT = "the next block"


class Block:
    def __init__(self):
        self.instructions = []
        self.targets = []


def blocks_of(lines):
    """Basic blocks, in the order of addresses, with the indices of those that may follow."""
    blocks, labels = [Block()], {}
    for line in lines:
        label = re.match(r"\s*\.?(\.L_x_\d+|\$\S+):", line)
        if label:
            if blocks[-1].instructions:
                blocks.append(Block())
            labels[label.group(1)] = len(blocks) - 1
            continue
        code = re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?)\s*(\(\*.*\*\))?\s*;", line)
        if not code:
            continue
        text = code.group(1)
        blocks[-1].instructions.append(text)
        always = not text.startswith("@") or text.startswith("@PT ")
        jump = re.search(r"\bBRA(?!\.DIV)\S*\b.*`\((\S+)\)", text)
        if jump or re.search(r"\b(EXIT|RET)\b", text):
            blocks[-1].targets += [jump.group(1)] if jump else []
            blocks[-1].targets += [] if always and "BRA.CONV" not in text else [NEXT]
            blocks.append(Block())
    for number, block in enumerate(blocks):
        ends = block.instructions and re.search(r"\b(BRA(?!\.DIV)|EXIT|RET)\b", block.instructions[-1])
        targets = block.targets if ends else [NEXT]
        block.targets = [number + 1 if t == NEXT else labels.get(t) for t in targets]
        block.targets = [t for t in block.targets if t is not None and t < len(blocks)]
    return blocks


def loops_of(blocks):
    """{first block: set of blocks} for every jump back."""
    before = {n: [m for m, b in enumerate(blocks) if n in b.targets] for n in range(len(blocks))}
    loops = {}
    for last, block in enumerate(blocks):
        for first in block.targets:
            if first > last:
                continue
            loop, left = {first}, [last]
            while left:
                n = left.pop()
                if n not in loop:
                    loop.add(n)
                    left += before[n]
            loops.setdefault(first, set()).update(loop)
    return loops


def longest_way(blocks, loop, first, inner, leaves_out, ends=None):
    """Instructions on the longest way from the loop's first block back to it, or to one of the ends;
    None without one."""
    closed = set().union(*inner) if inner else set()

    def is_open(n):
        return n not in closed and not any(
            RARE.search(i) or (leaves_out and leaves_out.search(i)) for i in blocks[n].instructions
        )

    best = {}
    order, seen = [], set()

    def visit(start):
        stack = [(start, iter(blocks[start].targets))]
        seen.add(start)
        while stack:
            n, targets = stack[-1]
            for t in targets:
                if t in loop and t != first and t not in seen and is_open(t):
                    seen.add(t)
                    stack.append((t, iter(blocks[t].targets)))
                    break
            else:
                order.append(n)
                stack.pop()

    visit(first)
    for n in order:  # from the ends
        ways = [[]] if (n in ends if ends else first in blocks[n].targets) else []
        ways += [best[t] for t in blocks[n].targets if best.get(t) is not None and t != first]
        way = max(ways, key=len, default=None)
        best[n] = None if way is None else blocks[n].instructions + way
    return best[first]


def count(name, blocks, unit, of_unit, leaves_out):
    """Warp instructions per unit in the innermost loop that has most of them."""
    if unit == "EXIT":
        ends = {n for n, b in enumerate(blocks) if any(re.search(r"\bEXIT\b", i) for i in b.instructions)}
        ways_around = []
        for loop in loops_of(blocks).values():
            if longest_way(blocks, range(len(blocks)), 0, ways_around + [loop], leaves_out, ends):
                ways_around.append(loop)
        way = longest_way(blocks, range(len(blocks)), 0, ways_around, leaves_out, ends)
        return len([i for i in way if not i.startswith("NOP")])
    unit = re.compile(r"\b" + unit + r"\b")
    loops = loops_of(blocks)
    counts = {
        first: sum(bool(unit.search(i)) for n in loop for i in blocks[n].instructions)
        for first, loop in loops.items()
    }
    most = max(counts.values(), default=0)
    if most == 0:
        raise SystemExit(f"{name}: no loop has {unit.pattern}")
    first = min((f for f in loops if counts[f] == most), key=lambda f: len(loops[f]))
    inner = [l for f, l in loops.items() if f != first and l < loops[first]]
    way = longest_way(blocks, loops[first], first, inner, leaves_out)
    if way is None:
        raise SystemExit(f"{name}: no way through its loop is open")
    units = sum(bool(unit.search(i)) for i in way) / of_unit
    if units == 0:
        raise SystemExit(f"{name}: the longest way has no {unit.pattern}")
    return len([i for i in way if not i.startswith("NOP")]) / units


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--nvdisasm", default="nvdisasm")
    parser.add_argument("--only", default="")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    version = subprocess.run([options.nvcc, "--version"], check=True, capture_output=True, text=True)
    if "release 13.0" not in version.stdout and not options.update:
        print("Skipped: the ceilings hold for nvcc 13.0")
        return
    with tempfile.TemporaryDirectory() as folder:
        cubin = f"{folder}/kernels.cubin"
        subprocess.run(
            [options.nvcc, "-std=c++20", "-arch=sm_90", f"-I{HERE}/../../include", "-cubin",
             str(HERE / "metered_kernels.cu"), "-o", cubin], check=True)
        text = subprocess.run(
            [options.nvdisasm, "-c", cubin], check=True, capture_output=True, text=True).stdout
    code = {}
    for section in re.split(r"\n//-+ \.text\.", text)[1:]:
        mangled, _, body = section.partition("\n")
        name = re.search(r"run_blocksI\d+(\w+?)EEvT_|run_\w+?I\d+(\w+?)EEv", mangled)
        if name:
            code[name.group(1) or name.group(2)] = body.splitlines()

    above, written, counted = [], [], 0
    for line in CEILINGS.read_text().splitlines():
        written.append(line)
        entry = re.match(r"(\w+)(\S*)\s+(\d+)\s+per\s+(\S+)\s+=\s+(\d+)\s+(\S+)(?:\s+without (\S+))?$", line)
        if not entry:
            if line and not line.startswith("#"):
                raise SystemExit(f"{CEILINGS.name}: not understood: {line}")
            continue
        name, part, ceiling, what, of_unit, unit, leaves_out = entry.groups()
        if not re.search(options.only, name):
            continue
        if name not in code:
            raise SystemExit(f"{name} is not in metered_kernels.cu")
        number = count(name + part, blocks_of(code[name]), unit, int(of_unit),
                       re.compile(leaves_out) if leaves_out else None)
        counted += 1
        print(f"{name + part:32} {number:8.1f} of {ceiling:>5} per {what}")
        if number > int(ceiling):
            above.append(name + part)
        written[-1] = line.replace(f" {ceiling} per", f" {int(number + 0.999)} per", 1)
    if options.update:
        CEILINGS.write_text("\n".join(written) + "\n")
    if above:
        sys.exit("More instructions than their ceilings allow: " + ", ".join(above))
    print(f"{counted} loops within their ceilings")


if __name__ == "__main__":
    main()
