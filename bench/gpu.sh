#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Everything that needs a GPU, on a machine that has no more than nvcc, CMake and this tree:
#   bench/gpu.sh RESULTS STEP...
#   look       what the machine has: GPU, driver, nvcc, compilers, cuBLAS, PyTorch
#   build      compiles tests, benchmark and example (MHLA_GPU_ARCHITECTURES=90, MHLA_GPU_BUILD=build/gpu)
#   pack       strips what was built and removes the rest, so that the build folder can be carried: build
#              in a folder of this tree (MHLA_GPU_BUILD=carried), carry it to the same place of another
#              copy of the tree, and leave out build there
#   check      the tests; MHLA_GPU_TESTS is a regular expression of their names
#   sanitize   small ones under each tool of compute-sanitizer, where it works; or one of them:
#              memcheck, racecheck, initcheck, synccheck
#   bench      ceilings, then every shape on every path, what matters most first; more arguments of
#              bench_gpu in MHLA_BENCH_GPU
# Each step is meant to take less than ten minutes. Results go into the folder RESULTS as they come:
# a log for each step, and gpu.jsonl with a line for each figure. The status is 77 where a step found
# no GPU, else 1 where one failed. It needs no Eigen, Catch2 or Google Benchmark.
set -u -o pipefail
if [[ $# -lt 2 ]]; then
  sed -n '3,18s/^# //p' "$0" >&2
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

# A folder with cuBLAS's include/ and lib/: that of a Python package where nvcc came without it.
cublas_folder() {
  local header
  for header in "${CUDA_PATH:-/usr/local/cuda}"/include/cublas_v2.h /usr/include/cublas_v2.h \
    "$(python3 -c 'import site; print(site.getsitepackages()[0])' 2>/dev/null)"/nvidia/*/include/cublas_v2.h; do
    if [[ -e $header ]]; then
      dirname "$(dirname "$header")"
      return
    fi
  done
}

look() {
  nvidia-smi || echo "no nvidia-smi"
  nvidia-smi --query-gpu=clocks.max.sm,clocks.max.mem,power.limit,ecc.mode.current --format=csv || true
  nvcc --version | tail -n 2
  g++ --version | head -n 1
  cmake --version | head -n 1
  echo "ninja $(ninja --version 2>/dev/null || echo missing)"
  echo "cuBLAS in $(cublas_folder)"
  echo "compute-sanitizer $(command -v compute-sanitizer || echo missing); ncu $(command -v ncu || echo missing)"
  python3 -c 'import torch; print("PyTorch", torch.__version__, torch.backends.cudnn.version())' || true
}

configure_and_build() {
  local generator=()
  MHLA_CUBLAS=$(cublas_folder)
  export MHLA_CUBLAS
  if command -v ninja >/dev/null; then generator=(-G Ninja); fi
  cmake "${generator[@]}" -S "$root/tests/gpu" -B "$build" \
    -DCMAKE_CUDA_ARCHITECTURES="${MHLA_GPU_ARCHITECTURES:-90}" &&
    cmake --build "$build" --parallel "$(nproc)"
}

# Symbols are what makes the programs large; what objects were needed for is done.
pack() {
  strip "$build"/mhla_gpu_tests "$build"/bench_gpu "$build"/gpu_training_step &&
    find "$build" \( -name '*.o' -o -name '*.a' -o -name '*.cu' \) -delete && du -sh "$build"
}

# ctest, with its arguments, where there is a GPU.
tests() {
  "$build/mhla_gpu_tests" --probe || return
  ctest --test-dir "$build" --verbose "$@"
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
    look) look ;;
    build) configure_and_build ;;
    pack) pack ;;
    check)
      tests --tests-regex "${MHLA_GPU_TESTS:-.}" --exclude-regex '/(mem|race|init|sync)check$'
      ;;
    sanitize) tests --tests-regex '/(mem|race|init|sync)check$' ;;
    memcheck | racecheck | initcheck | synccheck) tests --tests-regex "/$step$" ;;
    bench) measure ;;
    *)
      echo "$step: unknown; the steps are look, build, pack, check, sanitize, memcheck, racecheck," \
        "initcheck, synccheck and bench"
      exit 2
      ;;
  esac 2>&1 | tee "$results/$step.log"
  status=${PIPESTATUS[0]}
  echo "=== $step: status $status, $((SECONDS - start)) s"
  if [[ $status -ne 0 && $worst -ne 1 ]]; then worst=$((status == 77 ? 77 : 1)); fi
done
exit $worst
