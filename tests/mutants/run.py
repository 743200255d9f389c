#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Plants each fault of faults.txt in a header and sees whether the test that it names notices.

    tests/mutants/run.py BUILD [--only REGEX] [--jobs N]
    tests/mutants/run.py --check

BUILD is a build folder of the tests, made by Ninja with CMAKE_EXPORT_COMPILE_COMMANDS=ON and
MHLA_TESTS_TOGETHER=OFF. The mutated header lies in a folder of its own, which comes before include/; what
includes it is compiled again with the flags of the build, linked and run. --check compiles nothing. Both end
with 1 where faults.txt has more than 100 faults or two of one name, or where a fault's text is not found
exactly once in its header; the first also where a fault does not compile or its test passes.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 100  # one fault per term of an equation or rule of a promise; a new one replaces an old one


class Fault:
    """`name in header: test`, and the text there (-) with what takes its place (+)."""

    def __init__(self, lines):
        self.name, self.header, self.test = re.fullmatch(r"(\w+) in (\S+): (\S+)", lines[0]).groups()
        self.removed, self.added = ("\n".join(line[1:].strip() for line in lines if line[0] == sign)
                                    for sign in "-+")
        self.source = ROOT / ("" if self.header.startswith("examples/") else "include") / self.header

    def planted(self):
        """The header with the fault, or None if the text, however laid out, is not there exactly once."""
        words = re.findall(r"\w+|[^\w\s]", self.removed)
        pattern = r"(?:\s|//.*\n)*".join(map(re.escape, words))
        text, count = re.subn(pattern, lambda _: self.added, self.source.read_text())
        return text if count == 1 else None


class Build:
    """What a build folder knows: how an object is compiled, what it includes, what a test links."""

    def __init__(self, folder):
        self.folder = folder
        self.compile = {}
        for entry in json.loads((folder / "compile_commands.json").read_text()):
            words = shlex.split(entry["command"])
            self.compile[words[words.index("-o") + 1]] = words
        self.includes = {}
        for record in self.ninja("-t", "deps").split("\n\n"):
            target, *files = record.splitlines() or [""]
            self.includes[target.split(":")[0]] = {os.path.normpath(folder / file.strip()) for file in files}

    def ninja(self, *arguments):
        return subprocess.run(["ninja", "-C", str(self.folder), *arguments], check=True, text=True,
                              stdout=subprocess.PIPE).stdout

    def links(self, output):
        """The command that makes a program or an archive."""
        commands = self.ninja("-t", "commands", "-s", output).splitlines()
        return next(line for line in reversed(commands) if not line.startswith("ninja"))

    def run(self, fault, text):
        """Whether the fault's test notices the header `text`."""
        program = "tests/test_" + fault.test.replace("/", "_")
        with tempfile.TemporaryDirectory() as temporary:
            mutated = pathlib.Path(temporary, "include", fault.header)
            mutated.parent.mkdir(parents=True)
            mutated.write_text(text)
            link = self.links(program).replace(f"-o {program}", f"-o {temporary}/test")
            for archive in re.findall(r"(?<!\S)[^/\s]\S*\.a\b", link):
                link = link.replace(archive, " ".join(re.findall(r"\S+\.o\b", self.links(archive))))
            recompiled = [name for name in re.findall(r"\S+\.o\b", link)
                          if str(fault.source) in self.includes.get(name, ())]
            if not recompiled:
                return f"SURVIVED: {fault.test} does not include it"
            for number, name in enumerate(recompiled):
                words = list(self.compile[name])
                words[words.index("-o") + 1] = f"{temporary}/{number}.o"
                words[1:1] = [f"-I{temporary}/include", f"-iquote{fault.source.parent}"]
                built = subprocess.run([*words, "-Wno-error"], cwd=self.folder, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True)
                if built.returncode:
                    return "DOES NOT COMPILE: " + next(
                        (line for line in built.stdout.splitlines() if "error" in line), "")
                link = re.sub(rf"(?<!\S){re.escape(name)}(?!\S)", f"{temporary}/{number}.o", link)
            subprocess.run(link, cwd=self.folder, shell=True, check=True, stdout=subprocess.DEVNULL)
            try:
                status = subprocess.run([f"{temporary}/test", "--abort"], cwd=self.folder,
                                        timeout=600, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL).returncode
            except subprocess.TimeoutExpired:
                return "killed: it never ends"
            return "SURVIVED" if status == 0 else f"killed: {status}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path, nargs="?")
    parser.add_argument("--only", default="", help="faults whose names match a regular expression")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--check", action="store_true", help="look for the texts alone")
    options = parser.parse_args()

    paragraphs = re.split(r"\n\s*\n", (pathlib.Path(__file__).parent / "faults.txt").read_text())
    lines = [[line for line in paragraph.splitlines() if not line.startswith("#")]
             for paragraph in paragraphs]
    faults = [Fault(paragraph) for paragraph in lines if paragraph]
    repeated = [name for name, count in collections.Counter(f.name for f in faults).items() if count > 1]
    if len(faults) > LIMIT or repeated:
        sys.exit(f"{len(faults)} faults, at most {LIMIT} may be; names that repeat: {repeated}")
    build = None if options.check else Build(options.build.resolve())

    def verdict(fault):
        text = fault.planted()
        if text is None:
            return f"NOT FOUND ONCE in {fault.header}"
        return "found" if options.check else build.run(fault, text)

    faults = [fault for fault in faults if re.search(options.only, fault.name)]
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for fault, result in zip(faults, pool.map(verdict, faults)):
            bad += not result.startswith(("killed", "found"))
            print(f"{fault.name:50} {fault.test:24} {result}", flush=True)
    print(f"{len(faults) - bad} {'found' if options.check else 'killed'}, {bad} not")
    return 1 if bad or not faults else 0


if __name__ == "__main__":
    sys.exit(main())
