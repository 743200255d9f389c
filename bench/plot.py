#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Plots for README out of what bench_attention and pytorch.py wrote: time against tokens with the
library's peers, and percent of the FMA peak of every shape. SVG by hand, readable on light and dark
pages; needs nothing but Python.

    python3 bench/plot.py attention.json [--pytorch pytorch.json] --out build/release/bench/results"""
import argparse
import json
import math
import os
import re

STYLE = """<style>
text { font: 13px -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #24292f; }
.title { font-size: 15px; font-weight: 600; }
.quiet { fill: #57606a; }
.grid { stroke: #8c959f; stroke-opacity: .3; stroke-width: 1; }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
.c0 { stroke: #0969da; fill: #0969da; } .c1 { stroke: #54aeff; fill: #54aeff; }
.c2 { stroke: #bc4c00; fill: #bc4c00; } .c3 { stroke: #1a7f37; fill: #1a7f37; }
.c4 { stroke: #8250df; fill: #8250df; } .c5 { stroke: #cf222e; fill: #cf222e; }
.bar { stroke: none; }
text.c0, text.c1, text.c2, text.c3, text.c4, text.c5 { stroke: none; }
.line.c0, .line.c1, .line.c2, .line.c3, .line.c4, .line.c5 { fill: none; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .quiet { fill: #9198a1; }
.c0 { stroke: #4493f8; fill: #4493f8; } .c1 { stroke: #1f6feb; fill: #1f6feb; }
.c2 { stroke: #f0883e; fill: #f0883e; } .c3 { stroke: #3fb950; fill: #3fb950; }
.c4 { stroke: #ab7df8; fill: #ab7df8; } .c5 { stroke: #ff7b72; fill: #ff7b72; }
}
</style>"""


def escape(text):
    return str(text).replace("&", "&amp;").replace("<", "&lt;")


class Svg:
    def __init__(self, width, height, title):
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
                      f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">',
                      STYLE]

    def add(self, text):
        self.parts.append(text)

    def text(self, x, y, text, css="", anchor="start"):
        self.add(f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}">'
                 f'{escape(text)}</text>')

    def line(self, x1, y1, x2, y2, css):
        self.add(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css}"/>')

    def write(self, path):
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(self.parts + ["</svg>"]) + "\n")
        print(path)


def read_results(path):
    """{WHAT/SHAPE/SCALAR/EXECUTOR[/WORKING_SET]: columns}"""
    with open(path, encoding="utf-8") as file:
        benchmarks = json.load(file)["benchmarks"]
    return {re.sub(r"(/iterations:\d+)?/manual_time$", "", b["name"]): b for b in benchmarks}


def milliseconds(value):
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def time_series(results, pytorch):
    """[(name, {tokens: ms})] of the paper's Table 14: 6 heads of 64, 16 and 64 blocks."""
    series = {}
    for key, row in results.items():
        match = re.fullmatch(r"peers_forward/Tab14_N(\d+)_M(16|64)/float/serial", key)
        if not match or "ms" not in row:
            continue
        tokens, blocks = int(match[1]), match[2]
        series.setdefault(f"mhla, {blocks} blocks", {})[tokens] = row["ms"]
        if blocks == "16":
            for peer, name in (("eigen", "Eigen by hand, 16 blocks"),
                               ("linear", "global linear attention"),
                               ("softmax", "tiled softmax attention")):
                series.setdefault(name, {})[tokens] = row[peer + "_ms"]
    for row in pytorch:
        match = re.fullmatch(r"Tab14_N(\d+)_M16", row["shape"])
        if match and row["pass"] == "forward" and row["threads"] == 1:
            points = series.setdefault("PyTorch's best, 16 blocks", {})
            tokens = int(match[1])
            points[tokens] = min(points.get(tokens, math.inf), row["torch_ms"])
    order = ["mhla, 16 blocks", "mhla, 64 blocks", "tiled softmax attention",
             "global linear attention", "Eigen by hand, 16 blocks", "PyTorch's best, 16 blocks"]
    return [(name, series[name]) for name in order if series.get(name)]


def plot_time(series, path):
    width, height = 800, 440
    left, right, top, bottom = 62, 556, 62, 392
    svg = Svg(width, height, "Time of a forward pass against the number of tokens")
    svg.text(16, 24, "Forward pass of one image, one thread, float", "title")
    svg.text(16, 44, "milliseconds against tokens, both logarithmic; 6 heads of 64", "quiet")
    tokens = sorted({t for _, points in series for t in points})
    values = [v for _, points in series for v in points.values()]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def x(count):
        span = math.log(tokens[-1] / tokens[0]) or 1
        return left + (right - left) * math.log(count / tokens[0]) / span

    def y(ms):
        return bottom - (bottom - top) * (math.log10(ms) - low) / (high - low)

    for power in range(low, high + 1):
        svg.line(left, y(10.0 ** power), right, y(10.0 ** power), "grid")
        svg.text(left - 8, y(10.0 ** power) + 4, f"{10.0 ** power:g}", "quiet", "end")
    for count in tokens:
        svg.line(x(count), top, x(count), bottom, "grid")
        svg.text(x(count), bottom + 20, count, "quiet", "middle")
    labels = []
    for index, (name, points) in enumerate(series):
        marks = [(x(t), y(points[t])) for t in sorted(points)]
        path_data = " L".join(f"{a:.1f} {b:.1f}" for a, b in marks)
        svg.add(f'<path class="line c{index}" d="M{path_data}"/>')
        for a, b in marks:
            svg.add(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.2" class="c{index}"/>')
        last = points[max(points)]
        labels.append([marks[-1][1], f"{name}: {milliseconds(last)}", index])
    labels.sort()
    for i in range(1, len(labels)):  # apart, so that they can be read
        labels[i][0] = max(labels[i][0], labels[i - 1][0] + 17)
    for at, text, index in labels:
        svg.text(right + 10, at + 4, text, f"c{index}")
    svg.write(path)


def plot_peak(results, path):
    rows = []
    for key, row in results.items():
        match = re.fullmatch(r"forward/(.*)/float/serial", key)
        backward = results.get(key.replace("forward/", "backward/", 1))
        if match and backward and "of_FMA_peak" in row and "of_FMA_peak" in backward:
            rows.append((match[1], row["of_FMA_peak"], backward["of_FMA_peak"]))
    step, left, right, top = 30, 190, 700, 74
    bottom = top + step * len(rows)
    svg = Svg(760, bottom + 34, "Percent of the FMA peak at each shape")
    svg.text(16, 24, "Percent of the measured FMA peak, one thread, float", "title")
    svg.text(16, 44, "FLOPs as executed; the peak is measured between the runs", "quiet")
    svg.add(f'<rect class="bar c0" x="{right - 172}" y="34" width="12" height="12"/>')
    svg.text(right - 154, 45, "forward")
    svg.add(f'<rect class="bar c2" x="{right - 88}" y="34" width="12" height="12"/>')
    svg.text(right - 70, 45, "backward")
    for percent in range(0, 101, 20):
        x = left + (right - left) * percent / 100
        svg.line(x, top - 6, x, bottom, "grid")
        svg.text(x, bottom + 20, f"{percent} %", "quiet", "middle")
    for index, (name, forward, backward) in enumerate(rows):
        y = top + step * index
        svg.text(left - 10, y + 17, name, "", "end")
        for offset, value, css in ((2, forward, "c0"), (13, backward, "c2")):
            length = (right - left) * min(value, 1)
            svg.add(f'<rect class="bar {css}" x="{left}" y="{y + offset}" width="{length:.1f}" '
                    f'height="10"/>')
            svg.add(f'<text x="{left + length + 5:.1f}" y="{y + offset + 9}" class="quiet" '
                    f'style="font-size:10px">{100 * value:.0f}</text>')
    svg.write(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", help="of bench_attention --benchmark_out")
    parser.add_argument("--pytorch", help="of pytorch.py --json")
    parser.add_argument("--out", default=".")
    parser.add_argument("--suffix", default="", help="of the names of the files")
    arguments = parser.parse_args()
    results = read_results(arguments.json)
    pytorch = []
    if arguments.pytorch and os.path.exists(arguments.pytorch):
        with open(arguments.pytorch, encoding="utf-8") as file:
            pytorch = json.load(file)["rows"]
    os.makedirs(arguments.out, exist_ok=True)
    series = time_series(results, pytorch)
    if series:
        plot_time(series, os.path.join(arguments.out, f"time_against_tokens{arguments.suffix}.svg"))
    plot_peak(results, os.path.join(arguments.out, f"percent_of_peak{arguments.suffix}.svg"))


if __name__ == "__main__":
    main()
