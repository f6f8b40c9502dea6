# Keeps the paths of the source tree, cargo's files and the toolchain out of binaries. Sourced by scripts/build and scripts/profile.

# map_paths TREE TARGET   Tells rustc and the C compiler which paths to write instead.
map_paths() {
  local tree=$1 target=$2 cargo_home=${CARGO_HOME:-$HOME/.cargo} sources commit registry map
  # If rust-src is installed, the standard library's code refers to paths there.
  sources=$(rustc --print sysroot)/lib/rustlib/src/rust
  commit=$(rustc -vV | sed -n 's/^commit-hash: //p')
  local maps=("$cargo_home=/cargo" "$sources=/rustc/$commit")
  # A registry's folder is named after its URL, which differs if a mirror is used.
  for registry in "$cargo_home"/registry/src/*; do
    # If the folder is a symbolic link, cargo writes one path and rustc the other.
    maps+=("$registry=/cargo" "$(realpath "$registry")=/cargo")
  done
  maps+=("$tree=/warren" "$target=/target")

  # Replaces the caller's flags, which would give other bytes. If several maps match a path, the last one counts.
  CARGO_ENCODED_RUSTFLAGS="" CFLAGS=""
  for map in "${maps[@]}"; do
    CARGO_ENCODED_RUSTFLAGS+=${CARGO_ENCODED_RUSTFLAGS:+$'\x1f'}--remap-path-prefix=$map
    CFLAGS+=" -ffile-prefix-map=$map"
  done
  export CARGO_ENCODED_RUSTFLAGS CFLAGS
}
