#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Appends medians of measurements to bench/results.csv, which has what the pages quote.

    python3 bench/record.py RUN.json --machine "Zen 4" --filter '^forward/.*/float/serial' --columns ms,of_FMA_peak

RUN.json is what bench_attention or bench_mixing (--benchmark_out), pytorch.py or distributed_video (--json)
wrote. A line's benchmark is NAME:COLUMN; table.cmake has the names, measurement.hpp the columns."""
import argparse
import collections
import csv
import json
import os
import re
import statistics
import subprocess
import time

HERE = os.path.dirname(os.path.abspath(__file__))
HEADER = ["benchmark", "value", "unit", "machine", "commit", "date", "note"]


def rows_of(run):
    """(name, columns) of every repetition."""
    for row in run.get("benchmarks", []):
        if row.get("run_type") != "aggregate":
            yield re.sub(r"(/iterations:\d+)?/manual_time$", "", row["name"]), row
    fastest = {}  # of pytorch.py's modes, in turns with the library
    for row in sorted(run.get("rows", []), key=lambda row: -row["ratio"]):
        fastest[row["pass"], row["shape"], row["threads"]] = row
    for (what, shape, threads), row in fastest.items():
        yield f"pytorch_{what}/{shape}/{row['mode']}/{threads}", row
    ranks = collections.defaultdict(list)  # distributed_video
    for row in run.get("passes", []):
        ranks[f"{row['pass']}/{row['split']}/{run['ranks']}_ranks"].append(row)
    for name, rows in ranks.items():
        yield name, {"MB": max(max(r["sent"], r["received"]) for r in rows) / 1e6,
                     "MB_peak": max(r["peak"] for r in rows) / 1e6,
                     **{key: statistics.mean(r[key] for r in rows) for key in ("ms", "ms_moving")}}


def unit_of(column):
    units = {"ms": r"(.*_)?ms(_.*)?", "us": "us_.*", "MB": "MB.*", "B": "workspace|state", "GFLOP/s": "(.*_)?GFLOP/s"}
    return next((unit for unit, names in units.items() if re.fullmatch(names, column)), "1")


def record(run, table, columns, pattern, summary, about):
    """Appends the lines; about: machine, commit, date, note. summary: least, median and largest of each column."""
    values = collections.defaultdict(lambda: collections.defaultdict(list))
    for name, row in rows_of(run):
        for column in columns:
            if column in row and re.search(pattern, name):
                values[column][name].append(row[column])
    is_new = not os.path.exists(table)
    with open(table, "a", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerows([HEADER] if is_new else [])
        for column, names in values.items():
            medians = sorted((statistics.median(numbers), name) for name, numbers in names.items())
            chosen = [(name, value, "") for value, name in medians]
            if summary:
                chosen = [(pattern, medians[0][0], f"least of {len(medians)}: {medians[0][1]}"),
                          (pattern, statistics.median(value for value, _ in medians), f"median of {len(medians)}"),
                          (pattern, medians[-1][0], f"largest of {len(medians)}: {medians[-1][1]}")]
            for name, value, which in chosen:
                note = "; ".join(part for part in (which, about[-1]) if part)
                lines.writerow([f"{name}:{column}", f"{value:.4g}", unit_of(column), *about[:-1], note])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json")
    parser.add_argument("--machine", required=True)
    parser.add_argument("--filter", default="", help="regular expression of the names")
    parser.add_argument("--columns", default="ms")
    parser.add_argument("--summary", action="store_true", help="only the least, the median and the largest of all")
    parser.add_argument("--note", default="")
    parser.add_argument("--table", default=os.path.join(HERE, "results.csv"))
    arguments = parser.parse_args()
    with open(arguments.json, encoding="utf-8") as file:
        run = json.load(file)
    commit = subprocess.check_output(["git", "-C", HERE, "rev-parse", "--short", "HEAD"], text=True).strip()
    date = run.get("context", {}).get("date", time.strftime("%Y-%m-%d"))[:10]
    record(run, arguments.table, arguments.columns.split(","), arguments.filter, arguments.summary,
           [arguments.machine, commit, date, arguments.note])


if __name__ == "__main__":
    main()
