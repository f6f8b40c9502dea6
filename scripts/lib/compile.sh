# How the shipped binary is compiled: the same way for scripts/build and for scripts/profile, because the compiler finds a function in
# the profile by a name that depends on all of this. Sourced by both.

# compile TARGET FLAG   Compiles into TARGET, with one more flag for rustc, or an empty one.
compile() {
  local target=$1 flag=$2
  (
    map_paths "$(pwd -P)" "$target"
    CARGO_ENCODED_RUSTFLAGS+=${flag:+$'\x1f'$flag}
    cargo build --release --locked --offline --quiet --package warren --target-dir "$target" --config profile.release.debug=false
  )
}

# made_with   Prints what the names in a profile depend on: the compiler, and the crates.
made_with() {
  rustc -vV | sed -n 's/^\(commit-hash\|release\|host\|LLVM version\): /rustc \1: /p'
  printf 'Cargo.lock: %s\n' "$(sha256sum <Cargo.lock | cut -d ' ' -f 1)"
}
