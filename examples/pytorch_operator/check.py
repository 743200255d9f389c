#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Installs PyTorch, builds the operator and runs every check of it.

    python3 examples/pytorch_operator/check.py          # into an environment of its own; asks first
    python3 examples/pytorch_operator/check.py --here   # with the PyTorch of this Python

--here installs nothing and leaves what it builds in --build; its exit status is 77, and it says what
is missing, where it cannot. With --replay PROGRAM, mhla_replay judges dumped cases as well."""
import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench"))
from pytorch import TORCH, ask, install_torch, python_of  # noqa: E402

SKIPPED = 77
NEEDED = "torch, numpy, setuptools"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--here", action="store_true", help="with this Python; installs nothing")
    parser.add_argument("--venv", default=str(ROOT / "build" / "pytorch"),
                        help="environment, made where it is missing (build/pytorch)")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "pytorch_operator",
                        help="where --here builds (build/pytorch_operator)")
    parser.add_argument("--replay", help="the program mhla_replay")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    return parser.parse_args()


def environment_of(python):
    """The environment variables to run with where Python can import PyTorch, or None; and why it
    cannot."""
    if not shutil.which(python):
        return None, f"there is no {python}"
    environment = dict(os.environ, TORCH_LOGS="-all")
    tried = subprocess.run([python, "-c", f"import {NEEDED}"], env=environment, capture_output=True,
                           text=True)
    if tried.returncode == 0:
        return environment, ""
    return None, (tried.stderr.strip().splitlines() or ["it crashes"])[-1]


def confirm(arguments, install):
    if install:
        print(f"Installs {TORCH}, numpy and setuptools from PyPI into {arguments.venv}: about 0.7 GB to "
              "download and 1.7 GB of disk, a minute or two.")
    print(f"Compiles the operator, about a minute, installs it into {arguments.venv} as mhla_torch, and "
          "runs the checks, another minute.")
    if not arguments.yes:
        ask()


def install_into_venv(arguments):
    """The interpreter of an environment with the operator, and its variables."""
    python = python_of(arguments.venv)
    environment, _ = environment_of(python)
    confirm(arguments, install=environment is None)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    if environment is None:
        install_torch(arguments.venv)
        subprocess.run(pip + ["numpy", "setuptools"], check=True)
        environment, missing = environment_of(python)
        if environment is None:
            sys.exit(f"{TORCH} was installed but cannot be imported: {missing}")
    subprocess.run(pip + ["--no-build-isolation", "--no-deps", str(HERE)], check=True, env=environment)
    return python, environment


def build_here(arguments):
    environment, missing = environment_of(sys.executable)
    if environment is None:
        print(f"SKIPPED: {sys.executable} lacks what the operator needs ({NEEDED}): {missing}")
        sys.exit(SKIPPED)
    packages = arguments.build.resolve() / "lib"
    subprocess.run([sys.executable, "setup.py", "--quiet", "build", "--build-base",
                    str(packages.parent), "--build-lib", str(packages)],
                   cwd=HERE, env=environment, check=True)
    path = [str(packages)] + [p for p in (environment.get("PYTHONPATH"),) if p]
    return sys.executable, dict(environment, PYTHONPATH=os.pathsep.join(path),
                                MHLA_TORCH_CACHE=str(packages.parent / "variants"))


def main():
    arguments = parse_arguments()
    python, environment = (build_here if arguments.here else install_into_venv)(arguments)
    replay = [str(Path(arguments.replay).resolve())] if arguments.replay else []
    sys.exit(subprocess.run([python, HERE / "checks.py", *replay], env=environment).returncode)


if __name__ == "__main__":
    main()
