#!/usr/bin/env bash
# The native CPU kernels on this machine: builds them with their tests, runs the tests on every instruction set it has,
# and times a model's linears on each, without Python. Needs cmake and a C++17 compiler.
#     benchmarks/cpu_native_check.sh [THREADS] [FOLDER of plugins/cpu/native] [OUT]
set -euo pipefail
threads=${1:-2}
sources=${2:-$(dirname "$0")/../plugins/cpu/native}
out=${3:-$(mktemp -d)}
mkdir -p "$out"
grep -m1 "model name" /proc/cpuinfo || true
grep -m1 -o -w -E "avx2|avx512f" /proc/cpuinfo || true
grep -o -w -E "avx512_vnni|avx512_bf16|amx_bf16|amx_int8" /proc/cpuinfo | sort -u | tr '\n' ' '
cmake -S "$sources" -B "$out" -DTENON_TESTS=ON -DTENON_BENCH=ON -DTENON_OUTPUT="$out" >"$out/cmake.log"
time cmake --build "$out" --parallel "$(nproc)" >"$out/build.log" 2>&1 || { tail -50 "$out/build.log"; exit 1; }
time "$out/tenon_cpu_tests"
bench() { "$out/tenon_cpu_bench" --threads "$threads" --tokens 1,16,512 "$@"; }
echo "linears of SmolLM2-135M, $threads threads"
bench --isa all --types Q4_1,BF16
bench --isa all --types Q4_1 --fine
bench --types Q8_0,Q4_K,Q6_K --fine
echo "linears of a model of 1.1B parameters, $threads threads"
bench --shape 1b --types Q4_1,BF16
bench --shape 1b --types Q4_1 --fine
echo "attention of such a layer, $threads threads"
"$out/tenon_cpu_bench" --threads "$threads" --isa all --attention
