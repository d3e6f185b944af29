#!/usr/bin/env bash
# scripts/arm.sh: builds the tests of the rooms that compute (base, quant, ops) for 64-bit ARM and runs
# them in an emulator: the NEON kernels against the reference, as on any machine. It tells whether they compile and are
# right, not how fast they are. Debian 12; the cross compiler and the emulator are installed, the libraries for ARM
# only unpacked, into build/arm/root: the system stays of one architecture.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1-}" in -h | --help) usage; exit 0 ;; esac
scripts/deps.sh --arm

FATHOM_ARM_ROOT=$PWD/build/arm/root
export FATHOM_ARM_ROOT
lay_libraries() {
  local packages=(
    libfmt-dev libfmt9 libhwy-dev libhwy1 libgtest-dev libgmock-dev
    libedit-dev libedit2 libxxhash-dev libxxhash0 libpcre2-dev libpcre2-8-0 libncurses-dev libbsd-dev libbsd0
  )
  local work=$PWD/build/arm/packages package
  local apt=(
    apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root
    -o Dir::State="$work/state" -o Dir::Cache="$work/cache" -o Dir::State::status=/dev/null
  )
  note "fetching ${#packages[@]} packages for arm64"
  rm -rf "$work"
  mkdir -p "$work"/{state/lists,cache/archives}/partial
  (cd "$work" && "${apt[@]}" update && "${apt[@]}" download "${packages[@]}") >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    die "the packages for arm64 could not be had; see above"
  }
  for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/root"; done
  mv "$work/root" "$FATHOM_ARM_ROOT"
  rm -rf "$work"
}
[ -d "$FATHOM_ARM_ROOT" ] || lay_libraries

build arm fathom_compute_tests
note "running the tests (arm64, emulated)"
status=0
for room in base quant ops; do
  qemu-aarch64-static -L /usr/aarch64-linux-gnu -E "LD_LIBRARY_PATH=$FATHOM_ARM_ROOT/usr/lib/aarch64-linux-gnu" \
    "build/arm/bin/fathom_${room}_test" --gtest_brief=1 || status=1
done
exit $status
