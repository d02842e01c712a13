# Sourced by run.sh and test.sh: installs missing Debian packages, configures and builds. Quick when nothing is missing.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

# Objects are shared between clones: paths below the root do not enter ccache's keys.
export CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1

packages=(g++ cmake ninja-build ccache mold
  libmlir-22-dev mlir-22-tools llvm-22-dev llvm-22-tools zlib1g-dev libzstd-dev
  libfmt-dev libcli11-dev nlohmann-json3-dev libexpected-dev libssl-dev libsqlite3-dev doctest-dev libopenblas-dev libgloo-dev)
[ "${with_tests:-no}" = yes ] && packages+=(clang libclang-rt-14-dev pkgconf python3-numpy)

install_packages() {
  local missing=() package
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  echo "installing Debian packages: ${missing[*]}" >&2
  local sudo=""
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "run as root: apt-get install ${missing[*]}" >&2; exit 1; }
    sudo=sudo
  fi
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}

# build TARGET...: configures when needed and builds; silent but for errors unless it takes work.
build() {
  [ -f build/build.ninja ] || cmake --preset release >build-configure.log 2>&1 || { cat build-configure.log >&2; exit 1; }
  rm -f build-configure.log
  if [ -x build/bin/tilewright ]; then
    ninja -C build --quiet "$@" >&2
  else
    echo "building (the first time takes several minutes)" >&2
    ninja -C build "$@" >&2
  fi
}

install_packages
