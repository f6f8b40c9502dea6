# Keeps the places of the tree, of cargo's files and of the toolchain out of what is built. Sourced by scripts/build and scripts/profile.

# map_paths TREE TARGET   Tells rustc and the C compiler what to write instead.
map_paths() {
  local tree=$1 target=$2 cargo_home=${CARGO_HOME:-$HOME/.cargo} sources commit registry map
  # Where rust-src is installed, what the standard library's code says of itself is a path there.
  sources=$(rustc --print sysroot)/lib/rustlib/src/rust
  commit=$(rustc -vV | sed -n 's/^commit-hash: //p')
  local maps=("$cargo_home=/cargo" "$sources=/rustc/$commit")
  # A registry's folder is called after its address, which is another where a mirror is used.
  for registry in "$cargo_home"/registry/src/*; do
    # Behind a link cargo says the one path, and rustc the other.
    maps+=("$registry=/cargo" "$(realpath "$registry")=/cargo")
  done
  maps+=("$tree=/warren" "$target=/target")

  # Instead of what the caller has set, which would give other bytes. Of several that fit the last counts.
  CARGO_ENCODED_RUSTFLAGS="" CFLAGS=""
  for map in "${maps[@]}"; do
    CARGO_ENCODED_RUSTFLAGS+=${CARGO_ENCODED_RUSTFLAGS:+$'\x1f'}--remap-path-prefix=$map
    CFLAGS+=" -ffile-prefix-map=$map"
  done
  export CARGO_ENCODED_RUSTFLAGS CFLAGS
}
