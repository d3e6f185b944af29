#!/usr/bin/env bash
# free_of_cuda.sh FATHOM PROGRAM...: programs that use no GPU need nothing of CUDA: no library, no symbol; and what runs
# on the CPU opens neither the driver nor a device, which is traced where there is strace. Where a machine has no driver,
# asking for a GPU says so, and asking for whatever there is falls back to the CPU with one line.
set -euo pipefail
fathom=$1
status=0
complain() { echo "$1"; status=1; }

for program in "$@"; do
  libraries=$(ldd "$program")
  if grep -iE 'libcu|libnv|fathom_cuda' <<<"$libraries"; then complain "$program needs a library of CUDA"; fi
  if nm -D --undefined-only "$program" | grep -E ' _*(cu[A-Z]|cuda|nccl|nvml)'; then complain "$program has undefined symbols of CUDA"; fi
done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset FATHOM_DEVICE
traced() {  # traced ARGUMENT...: runs fathom, complains if it touches the driver
  strace -f -e trace=open,openat,execve -o "$folder/trace" "$fathom" "$@" <"$folder/in" >"$folder/out" 2>"$folder/err" ||
    complain "fathom $* failed: $(cat "$folder/err")"
  if grep -E '/dev/nvidia|libcuda|libnvidia|fathom_cuda\.so' "$folder/trace"; then complain "fathom $* touches the driver"; fi
}
if command -v strace >/dev/null && strace -o /dev/null true 2>/dev/null; then
  echo 'Hello' >"$folder/in"
  traced --help
  traced inspect
  traced inspect --kernels
  traced tokenize
  echo '{"messages": [{"role": "user", "content": "Hello"}], "thinking_mode": "chat"}' >"$folder/in"
  traced render
  traced run --device cpu -p Hello -n 2
else
  echo "no strace here: nothing was traced"
fi

if ! ldconfig -p | grep -q 'libcuda\.so\.1'; then
  if "$fathom" run --device cuda -p Hello -n 2 >"$folder/out" 2>"$folder/err"; then complain "a GPU was used without a driver"; fi
  grep -qE 'no CUDA driver|CUDA backend is not installed' "$folder/err" || complain "--device cuda does not say what is missing: $(cat "$folder/err")"
  "$fathom" run --device auto -q -p Hello -n 2 >"$folder/out" 2>"$folder/err" || complain "--device auto failed: $(cat "$folder/err")"
  [ "$(wc -l <"$folder/err")" = 1 ] || complain "--device auto says more or less than one line: $(cat "$folder/err")"
fi
exit $status
