# Compiles the shipped binary. Sourced by scripts/build and scripts/profile, which must compile in the same way: the compiler finds a function in
# the profile by a name that depends on all of these options.

# compile TARGET FLAGS...   Compiles $program, or else warren, into TARGET, with additional flags for rustc.
compile() {
  local target=$1 flag
  shift
  (
    map_paths "$(pwd -P)" "$target"
    for flag; do
      CARGO_ENCODED_RUSTFLAGS+=$'\x1f'$flag
    done
    cargo build --release --locked --offline --package "${program:-warren}" --target-dir "$target" --config profile.release.debug=false
  )
}

# made_with   Prints the inputs of a profile: the compiler, without which the profile is useless, and hashes of what was compiled.
made_with() {
  rustc -vV | sed -n 's/^\(commit-hash\|release\|host\|LLVM version\): /rustc \1: /p'
  printf 'Cargo.lock: %s\n' "$(sha256sum <Cargo.lock | cut -d ' ' -f 1)"
  printf 'profiles in Cargo.toml: %s\n' "$(sed -n '/^\[profile\.release/,/^$/p' Cargo.toml | sha256sum | cut -d ' ' -f 1)"
  printf 'vendor/patches: %s\n' "$(cat vendor/patches/*.patch | sha256sum | cut -d ' ' -f 1)"
}
