#!/usr/bin/env bash
# free_of_cuda.sh PROGRAM...: programs that use no GPU need nothing of CUDA: no library, no symbol, and running them opens
# neither the driver nor a device. The last is traced where there is strace.
set -euo pipefail
status=0
complain() { echo "$1"; status=1; }

for program in "$@"; do
  libraries=$(ldd "$program")
  if grep -iE 'libcu|libnv|fathom_cuda' <<<"$libraries"; then complain "$program needs a library of CUDA"; fi
  if nm -D --undefined-only "$program" | grep -E ' _*(cu[A-Z]|cuda|nccl|nvml)'; then complain "$program has undefined symbols of CUDA"; fi
  if command -v strace >/dev/null && strace -o /dev/null true 2>/dev/null; then
    trace=$(mktemp)
    strace -f -e trace=open,openat,execve -o "$trace" "$program" --help >/dev/null
    if grep -E '/dev/nvidia|libcuda|libnvidia|fathom_cuda\.so' "$trace"; then complain "$program --help touches the driver"; fi
    rm -f "$trace"
  fi
done
exit $status
