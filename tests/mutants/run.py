#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Plants each fault of faults.txt in a header and sees whether the test that it names notices.

    tests/mutants/run.py BUILD [--only REGEX] [--jobs N] [--check]

BUILD is a build folder of the tests, made by Ninja with CMAKE_EXPORT_COMPILE_COMMANDS=ON and
MHLA_TESTS_TOGETHER=OFF. The mutated header lies in a folder of its own, which comes before include/; what
includes it is compiled again with the flags of the build, linked and run. Ends with 1 where a test passes in
spite of its fault, where a fault does not compile, or where its text is not found exactly once. --check looks
for the texts alone.
"""
import argparse
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
HEADERS = {path.relative_to(ROOT / "include").as_posix(): path.read_text()
           for path in sorted((ROOT / "include/mhla").rglob("*"))
           if path.is_file() and path.suffix != ".md"}


class Fault:
    """A name, the test that must notice, a scope, and the text there with what takes its place."""

    def __init__(self, lines):
        self.name, self.test = (word.strip() for word in lines[0].split(":"))
        self.scope = next((line[3:].strip() for line in lines if line.startswith("in ")), None)
        self.removed = "\n".join(line[1:].strip() for line in lines if line.startswith("-"))
        self.added = "\n".join(line[1:].strip() for line in lines if line.startswith("+"))

    def places(self):
        """Where the text stands, however it is laid out: (header, begin, end)."""
        words = re.findall(r"\w+|[^\w\s]", self.removed)
        pattern = re.compile(r"(?:\s|//.*\n)*".join(re.escape(word) for word in words))
        found = set()
        for header, text in HEADERS.items():
            for begin, end in scopes(text, self.scope) if self.scope else [(0, len(text))]:
                found.update((header, match.start(), match.end())
                             for match in pattern.finditer(text, begin, end))
        return sorted(found)


def scopes(text, name):
    """The definitions of a function or type of that name: from the name to its closing brace."""
    for match in re.finditer(rf"\b{re.escape(name)}\b", text):
        opening = re.compile(r"[{};]").search(text, match.end())
        if not opening or opening.group() != "{":
            continue
        position = opening.start()
        while text[position:position + 1] == "{":
            depth = 0
            while position < len(text):
                depth += {"{": 1, "}": -1}.get(text[position], 0)
                position += 1
                if depth == 0:
                    break
            # Behind a member's initializer the body is still to come.
            rest = re.compile(r"(\s*,[^{};]*)?\s*(?=\{)").match(text, position)
            position = rest.end() if rest else position
        yield match.start(), position


class Build:
    """What a build folder knows: how an object is compiled, what it includes, what a test links."""

    def __init__(self, folder):
        self.folder = folder
        self.compile = {}
        for entry in json.loads((folder / "compile_commands.json").read_text()):
            words = shlex.split(entry["command"])
            self.compile[words[words.index("-o") + 1]] = words
        self.includes = {}
        for line in self.ninja("-t", "deps").splitlines():
            if line.startswith("    "):
                self.includes[target].add(os.path.normpath(folder / line.strip()))
            elif ": #deps" in line:
                target = line.split(":")[0]
                self.includes[target] = set()

    def ninja(self, *arguments):
        return subprocess.run(["ninja", "-C", str(self.folder), *arguments], check=True, text=True,
                              stdout=subprocess.PIPE).stdout

    def links(self, output):
        """The command that makes a program or an archive."""
        commands = self.ninja("-t", "commands", "-s", output).splitlines()
        return next(line for line in reversed(commands) if not line.startswith("ninja"))

    def run(self, fault, header, text):
        """Whether the fault's test notices the header `text`."""
        program = "tests/test_" + fault.test.replace("/", "_")
        with tempfile.TemporaryDirectory() as temporary:
            mutated = pathlib.Path(temporary, "include", header)
            mutated.parent.mkdir(parents=True)
            mutated.write_text(text)
            link = self.links(program).replace(f"-o {program}", f"-o {temporary}/test")
            recompiled = 0
            objects = re.findall(r"\S+\.o\b", link)
            for archive in re.findall(r"\S+\.a\b", link):
                if (self.folder / archive).exists() and not archive.startswith("/"):
                    members = re.findall(r"\S+\.o\b", self.links(archive))
                    link = link.replace(archive, " ".join(members))
                    objects += members
            for number, name in enumerate(objects):
                if str(ROOT / "include" / header) not in self.includes.get(name, ()):
                    continue
                words = list(self.compile[name])
                words[words.index("-o") + 1] = f"{temporary}/{number}.o"
                words.insert(1, f"-I{temporary}/include")
                words.append("-Wno-error")
                built = subprocess.run(words, cwd=self.folder, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True)
                if built.returncode:
                    return "DOES NOT COMPILE: " + next(
                        (line for line in built.stdout.splitlines() if "error" in line), "")
                link = re.sub(rf"(?<!\S){re.escape(name)}(?!\S)", f"{temporary}/{number}.o", link)
                recompiled += 1
            if recompiled == 0:
                return f"SURVIVED: {fault.test} does not include it"
            subprocess.run(link, cwd=self.folder, shell=True, check=True, stdout=subprocess.DEVNULL)
            try:
                status = subprocess.run([f"{temporary}/test", "--abort"], cwd=self.folder,
                                        timeout=300, stdout=subprocess.DEVNULL,
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
    faults = [fault for fault in map(Fault, filter(None, lines)) if re.search(options.only, fault.name)]
    build = None if options.check else Build(options.build.resolve())

    def verdict(fault):
        places = fault.places()
        if len(places) != 1:
            return f"NOT FOUND ONCE: {[header for header, _, _ in places]}"
        header, begin, end = places[0]
        if options.check:
            return f"found in {header}"
        text = HEADERS[header]
        return build.run(fault, header, text[:begin] + fault.added + text[end:])

    bad = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for fault, result in zip(faults, pool.map(verdict, faults)):
            bad += not result.startswith(("killed", "found"))
            print(f"{fault.name:50} {fault.test:24} {result}", flush=True)
    print(f"{len(faults) - bad} {'found' if options.check else 'killed'}, {bad} not")
    return 1 if bad or not faults else 0


if __name__ == "__main__":
    sys.exit(main())
