#!/usr/bin/env bash
# scripts/deps.sh [--lint] [--tidy] [--fuzz] [--clients] [--browser] [--arm] [--list]: installs the distribution packages
# that Fathom is built from, those that are missing and no others, and lays the sources of xgrammar, which no distribution
# has, into the user's cache folder. Debian 12 or Ubuntu 24.04 and later; as root or with sudo. Does nothing, and asks no
# network, when all are there.
#
#   --lint   also what scripts/lint.sh needs (clang-format 14)
#   --tidy   also what scripts/lint.sh --tidy needs (clang-tidy 14: about 500 MB installed)
#   --fuzz   also what scripts/fuzz.sh needs (clang with its run-time library)
#   --clients   also what scripts/clients.sh needs (Python with its venv module)
#   --browser   also what scripts/browser.sh needs (Chromium, its driver, selenium, pytest: about 400 MB installed)
#   --arm   also what scripts/arm.sh needs (a cross compiler and an emulator: about 500 MB installed)
#   --list   only prints the names, one a line
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

packages=(
  g++ cmake ninja-build ccache mold pkg-config                 # the toolchain
  libfmt-dev nlohmann-json3-dev libexpected-dev libcli11-dev   # text, JSON, Result, flags
  libboost-dev                                                 # HTTP
  libhwy-dev libedit-dev libxxhash-dev                         # SIMD, line editing, checksums
  libgtest-dev libgmock-dev libpcre2-dev                       # tests
  python3-pip                                                  # fetches xgrammar, below
)
# Grammars to token masks: the C++ core of the xgrammar package, of which pip has the sources. cmake/xgrammar.cmake builds it.
xgrammar_version=0.2.9
xgrammar_sha256=87b466bca2475e29bb0323abc62c6c33cbcbcff47e5fb800a3e2099ac9620b90
list_only=false
for arg in "$@"; do
  case "$arg" in
    --lint) packages+=(clang-format-14) ;;
    --tidy) packages+=(clang-tidy-14) ;;
    --fuzz) packages+=(clang-14 libclang-rt-14-dev) ;;
    --clients) packages+=(python3 python3-venv) ;;
    --browser) packages+=(chromium chromium-driver python3-selenium python3-pytest) ;;
    --arm) packages+=(g++-aarch64-linux-gnu qemu-user-static) ;;
    --list) list_only=true ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown option $arg (see --help)" ;;
  esac
done
if $list_only; then
  printf '%s\n' "${packages[@]}"
  exit 0
fi

command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
  die "this is not Debian or Ubuntu; install the equivalents of: ${packages[*]}"

# The source package, checked, and of it what is compiled. pip insists on preparing a package that it downloads, with the
# build system that the package names and hundreds of megabytes of Python behind it; a stand-in that answers the one
# question spares all that.
fetch_xgrammar() {
  local cache=${XDG_CACHE_HOME:-$HOME/.cache}/fathom name=xgrammar-$xgrammar_version
  [ ! -d "$cache/$name" ] || return 0
  note "fetching the sources of $name"
  mkdir -p "$cache"
  fetch_dir=$(mktemp -d "$cache/fetch.XXXXXX")
  mkdir -p "$fetch_dir/stand-in/scikit_build_core" "$fetch_dir/$name"
  cat >"$fetch_dir/stand-in/scikit_build_core/build.py" <<PYTHON
import pathlib

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = pathlib.Path(folder) / "$name.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: xgrammar\nVersion: $xgrammar_version\n")
    return info.name

def build_wheel(folder, config_settings=None, metadata_directory=None):
    raise NotImplementedError
PYTHON
  PYTHONPATH=$fetch_dir/stand-in /usr/bin/python3 -m pip download --quiet --no-deps --no-build-isolation \
    --no-binary xgrammar --dest "$fetch_dir" "xgrammar==$xgrammar_version" >"$fetch_dir/log" 2>&1 || {
    cat "$fetch_dir/log" >&2
    die "pip could not download the sources of $name; see above"
  }
  sha256sum --quiet --check - <<<"$xgrammar_sha256  $fetch_dir/$name.tar.gz" >&2 ||
    die "the downloaded $name.tar.gz is not the one that Fathom was made for"
  tar -xzf "$fetch_dir/$name.tar.gz" -C "$fetch_dir" \
    "$name"/{LICENSE,NOTICE,cpp,include,3rdparty/picojson,3rdparty/dlpack/include}
  # All or nothing, whoever else does the same at the same time.
  mv -T "$fetch_dir/$name" "$cache/$name" 2>/dev/null || [ -d "$cache/$name" ] || die "cannot write $cache/$name"
}
fetch_dir='' log=''
trap 'rm -rf "$fetch_dir" "$log"' EXIT

# One line a package that dpkg knows; unknown ones are reported on its standard error only.
installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
missing=()
for package in "${packages[@]}"; do
  grep -qxF "installed $package" <<<"$installed" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  note "all ${#packages[@]} packages are installed"
  fetch_xgrammar
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || die "neither root nor sudo here; as root, run: apt-get install ${missing[*]}"
  as_root=(sudo)
fi
note "installing ${missing[*]}"
log=$(mktemp)
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" >"$log" 2>&1 || {
    cat "$log" >&2
    die "apt-get $1 failed; see above"
  }
}
apt update
apt install -y --no-install-recommends "${missing[@]}"
fetch_xgrammar
