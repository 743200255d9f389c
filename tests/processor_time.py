#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Processor time (user + system) of what cmake/test.cmake builds and runs, as a table in Markdown.

    python3 tests/processor_time.py BUILD [--jobs 2] [--rows 25] [-DNAME=VALUE...]

Builds in the folder BUILD, which must be new, with CXX or else, as that script does, with clang where it is
installed; then runs each test by a ctest of its own. BUILD/processor_time.tsv has each command: kind, target or
program, output or test, seconds. If that file exists, only the table is printed."""
import argparse
import collections
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COMPILER = os.environ.get("CXX") or shutil.which("clang++") or "c++"
# CMake calls this program before each command of the build, and replaces what is in <>.
LAUNCH = """set(launch "\\"{python}\\" \\"{program}\\" --launch \\"{log}\\"")
set_property(GLOBAL PROPERTY RULE_LAUNCH_COMPILE "${{launch}} COMPILE <TARGET_NAME> \\"<OBJECT>\\"")
set_property(GLOBAL PROPERTY RULE_LAUNCH_LINK "${{launch}} LINK <TARGET_NAME> \\"<TARGET>\\"")
set_property(GLOBAL PROPERTY RULE_LAUNCH_CUSTOM "${{launch}} CUSTOM \\"<OUTPUT>\\" \\"<OUTPUT>\\"")
"""


def measure(command, **options):
    """Exit status and processor seconds of a command and of all processes that it waits for."""
    process = subprocess.Popen(command, **options)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime


def record(log, kind, target, output, seconds):
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"{kind}\t{target}\t{output}\t{seconds:.3f}\n")


def launch(log, kind, target, output, *command):
    status, seconds = measure(command)
    record(log, kind, os.path.basename(target), output, seconds)
    return status


def build(folder, log, jobs, options):
    os.makedirs(folder)
    include = os.path.join(folder, "processor_time.cmake")
    with open(include, "w", encoding="utf-8") as file:
        file.write(LAUNCH.format(python=sys.executable, program=os.path.abspath(__file__), log=log))
    status, seconds = measure(
        ["cmake", "-G", "Ninja", "-S", SOURCE, "-B", folder, f"-DCMAKE_PROJECT_INCLUDE={include}",
         f"-DCMAKE_CXX_COMPILER={COMPILER}",
         "-DMHLA_BUILD_TESTS=ON", "-DMHLA_BUILD_EXAMPLES=ON", "-DMHLA_BUILD_BENCH=OFF", *options], stdout=sys.stderr)
    record(log, "CONFIGURE", "configuring", "", seconds)
    if status or measure(["cmake", "--build", folder, "--parallel", str(jobs)], stdout=sys.stderr)[0]:
        sys.exit("The build failed.")


def run_tests(folder, log, jobs):
    ctest = ["ctest", "--test-dir", folder]
    listed = json.loads(subprocess.check_output([*ctest, "--show-only=json-v1"]))["tests"]
    idle = measure([*ctest, "-I", "0,0,0,0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)[1]

    def run(number):
        test = listed[number - 1]
        status, seconds = measure([*ctest, "-I", f"{number},{number}", "-FA", ".", "--output-on-failure"],
                                  stdout=sys.stderr)
        program = os.path.basename(test.get("command", [""])[0])
        record(log, "FAILED" if status else "TEST", program, test["name"], max(0, seconds - idle))

    # First, in order, the tests that others need.
    others = [i for i, test in enumerate(listed, 1) if all(p["name"] != "FIXTURES_SETUP" for p in test["properties"])]
    for number in sorted(set(range(1, len(listed) + 1)).difference(others)):
        run(number)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, others))


def table(log, rows):
    with open(log, encoding="utf-8") as file:
        entries = [line.rstrip("\n").split("\t") for line in file]
    tests = ("TEST", "FAILED")
    targets = {target for kind, target, _, _ in entries if kind not in tests}
    spent = collections.defaultdict(lambda: [0.0, 0.0, 0])
    for kind, target, output, seconds in entries:
        name = target if target in targets else output.split("/")[0] + "/"
        spent[name][kind in tests] += float(seconds)
        spent[name][2] += kind in tests
    order = sorted(spent.items(), key=lambda item: -sum(item[1][:2]))
    shown = order[:rows]
    for name, part in (f"{len(order[rows:])} others", order[rows:]), ("**all**", order):
        shown.append((name, [sum(row[i] for _, row in part) for i in range(3)]))
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        machine = re.search(r"model name\s*: (.*)", file.read())
    compiler = subprocess.check_output([COMPILER, "--version"], text=True).splitlines()[0]
    commit = subprocess.check_output(["git", "-C", SOURCE, "rev-parse", "--short", "HEAD"], text=True).strip()
    print(f"Processor seconds (user + system) of {commit}, {time.strftime('%Y-%m-%d')},",
          f"{machine[1] if machine else 'unknown processor'}, {os.cpu_count()} cores, {compiler}\n")
    print("| target, or folder of tests without a program | build | run | tests |\n|---|--:|--:|--:|")
    for name, (built, run, count) in shown:
        print(f"| {name} | {built:,.1f} | {run:,.1f} | {count} |")
    return [output for kind, _, output, _ in entries if kind == "FAILED"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--rows", type=int, default=25)
    arguments, options = parser.parse_known_args()
    log = os.path.join(os.path.abspath(arguments.build), "processor_time.tsv")
    if not os.path.exists(log):
        build(os.path.dirname(log), log, arguments.jobs, options)
        run_tests(os.path.dirname(log), log, arguments.jobs)
    failed = table(log, arguments.rows)
    return "Failed: " + ", ".join(failed) if failed else 0


if __name__ == "__main__":
    sys.exit(launch(*sys.argv[2:]) if sys.argv[1:2] == ["--launch"] else main())
