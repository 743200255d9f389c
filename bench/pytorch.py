#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The library beside PyTorch on the CPU: bench_attention and the released formulation of MHLA in
plain PyTorch operations (torch_attention.py), eager and compiled, at the same shapes, batches and
numbers of threads; in float, or in bfloat16 against the library's Precision::fast.

    cmake --preset release && cmake --build --preset release --target bench_attention
    python3 bench/pytorch.py --json build/release/bench/results/pytorch.json
    python3 bench/pytorch.py --dtype bfloat16 --json build/pytorch_bfloat16.json

The two take turns: a round runs the library at a shape, then PyTorch; the medians over the rounds
are compared. Needs a C++ compiler (torch.compile does) and no GPU. Never part of the tests."""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
# What the library's results of a dtype go under.
SCALARS = {"float32": "float", "bfloat16": "bfloat16_fast"}
TORCH = "torch==2.15.0"
# What one shape takes with one number of threads in one mode, the library and compiling included.
MINUTES_PER_RUN = 0.4


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", default=os.path.join(ROOT, "build", "pytorch"),
                        help="virtual environment, made where it is missing (build/pytorch)")
    parser.add_argument("--json", help="where the results are written as JSON")
    parser.add_argument("--bench", default=os.path.join(ROOT, "build", "release", "bench",
                                                        "bench_attention"))
    parser.add_argument("--shapes", default=".", help="a regular expression of shapes' names")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--modes", nargs="+", default=["eager", "compiled"],
                        choices=["eager", "compiled"])
    parser.add_argument("--dtype", default="float32", choices=list(SCALARS),
                        help="of all tensors, the mixing matrix included (PyTorch's; the library's "
                        "stays float)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.2,
                        help="for each measurement of a round; never fewer than three runs")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    return parser.parse_args()


def python_of(venv):
    return os.path.join(venv, "bin", "python")


def has_torch(venv):
    return os.path.exists(python_of(venv)) and subprocess.run(
        [python_of(venv), "-c", "import torch"], env=torch_environment(1),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def torch_environment(threads):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
    environment["CUDA_VISIBLE_DEVICES"] = ""
    environment["TORCH_LOGS"] = "-all"
    return environment


def ask():
    try:
        answer = input("Go on? [y/N] ")
    except EOFError:  # nobody there
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        sys.exit("Nothing was done; --yes does without asking.")


def confirm(arguments, count):
    install = not has_torch(arguments.venv)
    minutes = count * len(arguments.threads) * len(arguments.modes) * MINUTES_PER_RUN
    if install:
        print(f"Installs {TORCH} from PyPI into {arguments.venv}: about 0.7 GB to download and "
              "1.7 GB of disk, a minute or two.")
    print(f"Then measures {count} shapes with {arguments.threads} threads: about {minutes:.0f} "
          "minutes, most of them torch.compile's; up to 8 GB of memory at the largest shapes.")
    if not arguments.yes:
        ask()
    return install


def install_torch(venv):
    """PyPI's wheel for Linux is a CUDA build, and what it requires is gigabytes that a run on the CPU
    never calls. So: the wheel without its requirements, of those the ones in plain Python, the few
    small CUDA libraries that are called at the start, and empty stand-ins for the others, so that the
    loader finds their names."""
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    python = python_of(venv)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run(pip + ["--no-deps", TORCH], check=True)
    listed = subprocess.run(
        [python, "-c", "import importlib.metadata as m, json; print(json.dumps(m.requires('torch')))"],
        check=True, capture_output=True, text=True)
    plain, small = [], []
    for requirement in json.loads(listed.stdout):
        if "extra ==" in requirement:
            continue
        name = re.match(r"[A-Za-z0-9_.-]+", requirement).group().lower()
        if name == "cuda-toolkit":
            small.append(re.sub(r"\[.*?\]", "[cudart,cufile,cupti]", requirement))
        elif name.startswith(("nvidia-nvshmem", "nvidia-cuda-runtime", "nvidia-cuda-cupti",
                              "nvidia-cufile")):
            small.append(requirement)
        elif not name.startswith(("nvidia-", "cuda-", "triton")):
            plain.append(requirement)
    # setuptools and what builds need as well: torch.compile imports them.
    subprocess.run(pip + plain + small, check=True, stderr=subprocess.DEVNULL)
    if sys.platform.startswith("linux"):
        stand_in_for_missing_libraries(venv)


def stand_in_for_missing_libraries(venv):
    found = subprocess.run([python_of(venv), "-c",
                            "import sysconfig; print(sysconfig.get_paths()['platlib'])"],
                           check=True, capture_output=True, text=True)
    folder = os.path.join(found.stdout.strip(), "torch", "lib")
    compiler = os.environ.get("CXX", "c++")
    for library in ("libtorch_python.so", "libtorch_cuda.so", "libtorch_cuda_linalg.so"):
        path = os.path.join(folder, library)
        if not os.path.exists(path):
            continue
        listed = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
        for missing in sorted(set(re.findall(r"^\s*(\S+) => not found", listed, re.MULTILINE))):
            subprocess.run([compiler, "-shared", "-o", os.path.join(folder, missing),
                            f"-Wl,-soname,{missing}", "-x", "c++", os.devnull], check=True)
    # Symbols are looked up when they are used: those of the stand-ins never are.
    with open(os.path.join(found.stdout.strip(), "torch_without_cuda_libraries.pth"), "w") as file:
        file.write('import os; os.environ.setdefault("TORCH_USE_RTLD_GLOBAL", "1")\n')


class Peer:
    """A process of torch_attention.py."""

    def __init__(self, venv, threads, mode, dtype, cores):
        self.process = subprocess.Popen(
            [python_of(venv), os.path.join(HERE, "torch_attention.py"), "--threads", str(threads),
             "--mode", mode, "--dtype", dtype], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env=torch_environment(threads),
            preexec_fn=lambda: os.sched_setaffinity(0, cores))
        self.about = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("torch_attention.py ended")
        return json.loads(line)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def benchmarks_of(bench):
    return subprocess.run([bench, "--benchmark_list_tests"], check=True, capture_output=True,
                          text=True).stdout


def library_executor(names, threads):
    """The name results of that many threads go under."""
    if threads == 1:
        return "serial"
    return "fork_join" if "/fork_join" in names else "pool"


def run_library(arguments, shape, executor, cores):
    """{pass: columns} of one run of bench_attention."""
    pattern = f"^(forward|both|both_saved)/{shape['name']}/{SCALARS[arguments.dtype]}/{executor}/"
    pattern += "manual_time$"
    done = subprocess.run(
        [arguments.bench, "--benchmark_filter=" + pattern, "--benchmark_format=json",
         f"--benchmark_min_time={arguments.seconds}"], check=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, preexec_fn=lambda: os.sched_setaffinity(0, cores))
    results = {r["name"].split("/")[0]: r for r in json.loads(done.stdout)["benchmarks"]}
    if "forward" not in results:
        raise RuntimeError(f"bench_attention has no {pattern}")
    # A training loop would take the faster of the two.
    if "both_saved" in results:
        results["both"] = min(results["both"], results.pop("both_saved"), key=lambda r: r["ms"])
    return results


def compare(arguments, shape, executor, threads, mode, cores, peer):
    """A row for each pass: the medians over rounds in which library and PyTorch take turns."""
    ours, theirs, peaks, of_peak = {}, {}, [], {}
    passes = ["forward", "both"]
    peer.ask(prepare=shape)
    for name in passes:  # compiles
        peer.ask(time=name, seconds=0)
    for _ in range(arguments.rounds):
        library = run_library(arguments, shape, executor, cores)
        for name in passes:
            ours.setdefault(name, []).append(library[name]["ms"])
            of_peak.setdefault(name, []).append(library[name]["of_FMA_peak"])
            peaks.append(library[name]["FMA_peak"])
            answer = peer.ask(time=name, seconds=arguments.seconds)
            theirs.setdefault(name, []).append(answer["median_s"] * 1e3 / shape["batch"])
    peer.ask(release=True)
    rows = []
    for name in passes:
        flops = shape["useful_forward_flops"]
        if name == "both":
            flops += shape["useful_backward_flops"]
        ms = statistics.median(theirs[name])
        rows.append({"shape": shape["name"], "pass": name, "threads": threads, "mode": mode,
                     "dtype": arguments.dtype, "executor": executor,
                     "mhla_scalar": SCALARS[arguments.dtype],
                     "mhla_ms": statistics.median(ours[name]),
                     "mhla_of_FMA_peak": statistics.median(of_peak[name]), "torch_ms": ms,
                     "torch_useful_of_FMA_peak":
                         flops / ms / statistics.median(peaks) * 1e-6,
                     "ratio": ms / statistics.median(ours[name])})
    return rows


def table(rows, dtype):
    """PyTorch's best mode against the library; the peak is float's."""
    lines = [f"| shape | pass | threads | mhla {SCALARS[dtype]} ms | of peak | eager {dtype} ms | "
             f"compiled {dtype} ms | PyTorch's best of peak | ratio |",
             "|---|---|---|---|---|---|---|---|---|"]
    groups = {}
    for row in rows:
        groups.setdefault((row["shape"], row["pass"], row["threads"]), {})[row["mode"]] = row
    for (shape, name, threads), modes in groups.items():
        best = min(modes.values(), key=lambda r: r["torch_ms"])
        times = [f"{modes[m]['torch_ms']:.3g}" if m in modes else "-" for m in ("eager", "compiled")]
        what = "forward + backward" if name == "both" else name
        lines.append(f"| {shape} | {what} | {threads} | {best['mhla_ms']:.3g} | "
                     f"{100 * best['mhla_of_FMA_peak']:.0f} % | {times[0]} | {times[1]} | "
                     f"{100 * best['torch_useful_of_FMA_peak']:.0f} % | {best['ratio']:.2f} |")
    return "\n".join(lines)


def main():
    arguments = parse_arguments()
    if not os.path.exists(arguments.bench):
        sys.exit(f"{arguments.bench} is missing: build bench_attention, or name it with --bench.")
    if not shutil.which(os.environ.get("CXX", "c++")):
        sys.exit("torch.compile needs a C++ compiler, and none was found.")
    every_core = sorted(os.sched_getaffinity(0))
    for threads in list(arguments.threads):
        if threads > len(every_core):
            print(f"Leaves {threads} threads out: this machine has {len(every_core)} cores.")
            arguments.threads.remove(threads)
    shapes = [s for s in json.loads(subprocess.run([arguments.bench, "--shapes"], check=True,
                                                   capture_output=True, text=True).stdout)
              if re.search(arguments.shapes, s["name"])]
    names = benchmarks_of(arguments.bench)
    shapes = [s for s in shapes  # not all are there in bfloat16
              if f"forward/{s['name']}/{SCALARS[arguments.dtype]}/" in names]
    if confirm(arguments, len(shapes)):
        install_torch(arguments.venv)
        if not has_torch(arguments.venv):
            sys.exit(f"{TORCH} was installed but cannot be imported.")
    rows, begin, about = [], time.time(), {}
    for threads in arguments.threads:
        cores = every_core[:threads]
        executor = library_executor(names, threads)
        for mode in arguments.modes:
            peer = Peer(arguments.venv, threads, mode, arguments.dtype, cores)
            about = peer.about
            for shape in shapes:
                try:
                    rows += compare(arguments, shape, executor, threads, mode, cores, peer)
                except RuntimeError as error:  # said, and the table lacks the row
                    print(f"{shape['name']}, {threads} threads, {mode}: {error}", file=sys.stderr)
                    peer.close()
                    peer = Peer(arguments.venv, threads, mode, arguments.dtype, cores)
                    continue
                print(f"[{time.time() - begin:5.0f} s] {shape['name']}, {threads} threads, {mode}: "
                      + ", ".join(f"{r['pass']} {r['ratio']:.2f}" for r in rows[-2:]), flush=True)
                if arguments.json:  # as far as it is
                    with open(arguments.json, "w", encoding="utf-8") as file:
                        json.dump({"torch": about["torch"], "dtype": arguments.dtype,
                                   "rounds": arguments.rounds, "rows": rows}, file, indent=1)
            peer.close()
    print(table(rows, arguments.dtype))


if __name__ == "__main__":
    main()
