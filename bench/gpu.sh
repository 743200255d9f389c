#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Everything that needs a GPU, on a machine that has no more than nvcc, CMake and this tree:
#   bench/gpu.sh RESULTS STEP...
#   build      compiles tests, benchmark and example (MHLA_GPU_ARCHITECTURES=90, MHLA_GPU_BUILD=build/gpu)
#   check      the tests
#   sanitize   small ones under each tool of compute-sanitizer, where it works; or one of them:
#              memcheck, racecheck, initcheck, synccheck
#   bench      ceilings, then every shape on every path, small shapes first; more arguments of
#              bench_gpu in MHLA_BENCH_GPU
# Each step is meant to take less than ten minutes. Results go into the folder RESULTS as they come:
# a log for each step, and gpu.jsonl with a line for each figure. The status is 77 where a step found
# no GPU, else 1 where one failed. It needs no Eigen, Catch2 or Google Benchmark.
set -u -o pipefail
if [[ $# -lt 2 ]]; then
  sed -n '3,13s/^# //p' "$0" >&2
  exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
results=$(cd "$1" && pwd)
shift
build=${MHLA_GPU_BUILD:-$root/build/gpu}

gpu_line() {
  nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -n 1
}
MHLA_DRIVER=$(gpu_line driver_version)
MHLA_COMMIT=${MHLA_COMMIT:-$(git -C "$root" rev-parse --short HEAD 2>/dev/null || true)}
export MHLA_DRIVER MHLA_COMMIT

configure_and_build() {
  local generator=()
  if command -v ninja >/dev/null; then generator=(-G Ninja); fi
  cmake "${generator[@]}" -S "$root/tests/gpu" -B "$build" \
    -DCMAKE_CUDA_ARCHITECTURES="${MHLA_GPU_ARCHITECTURES:-90}" &&
    cmake --build "$build" --parallel "$(nproc)"
}

# ctest, with its arguments, where there is a GPU.
tests() {
  "$build/mhla_gpu_tests" etiquette >/dev/null
  if [[ $? -eq 77 ]]; then
    "$build/mhla_gpu_tests" etiquette
    return 77
  fi
  ctest --test-dir "$build" --verbose --timeout 500 "$@"
}

measure() {
  # Arguments are words.
  # shellcheck disable=SC2086
  "$build/bench_gpu" --out "$results/gpu.jsonl" ${MHLA_BENCH_GPU:-}
}

worst=0
for step in "$@"; do
  echo "=== $step: $(gpu_line name,clocks.sm,clocks.mem,temperature.gpu,power.draw)"
  start=$SECONDS
  case $step in
    build) configure_and_build ;;
    check) tests --exclude-regex '/(mem|race|init|sync)check$' ;;
    sanitize) tests --tests-regex '/(mem|race|init|sync)check$' ;;
    memcheck | racecheck | initcheck | synccheck) tests --tests-regex "/$step$" ;;
    bench) measure ;;
    *)
      echo "$step: unknown; the steps are build, check, sanitize, memcheck, racecheck, initcheck," \
        "synccheck and bench"
      exit 2
      ;;
  esac 2>&1 | tee "$results/$step.log"
  status=${PIPESTATUS[0]}
  echo "=== $step: status $status, $((SECONDS - start)) s"
  if [[ $status -ne 0 && $worst -ne 1 ]]; then worst=$((status == 77 ? 77 : 1)); fi
done
exit $worst
