# Runs the steps of a check one after the other, and adds up the tests in their output. Sourced by scripts/test.

passed=0 failed=0 skipped=0 unsteady=()
log=$(mktemp) failures=$(mktemp)
trap 'rm -f "$log" "$failures"' EXIT

# step NAME COMMAND...   Runs a command. A failure is counted, and the next step still runs.
step() {
  local name=$1 start=$SECONDS status verdict=ok
  shift
  echo "== $name"
  "$@" 2>&1 | tee "$log" | python3 scripts/lib/show.py
  status=${PIPESTATUS[0]}
  local tests_failed
  count_tests
  if [[ $status -ne 0 ]]; then
    verdict="FAILED"
    if [[ $tests_failed -gt 0 ]]; then
      python3 scripts/lib/count_tests.py --failures "$log" >>"$failures"
    else
      # The step failed without a failed test, for example because it does not compile. Count the step itself as a failure.
      failed=$((failed + 1))
      { echo "---- $name" && tail -n 40 "$log"; } >>"$failures"
    fi
  fi
  echo "== $name: $verdict, $((SECONDS - start)) s"
}

# Adds the tests that cargo test and unittest report in $log to the sums.
count_tests() {
  local counts
  counts=$(python3 scripts/lib/count_tests.py "$log") || counts="0 1 0"
  local step_passed step_skipped
  read -r step_passed tests_failed step_skipped <<<"$counts"
  passed=$((passed + step_passed)) failed=$((failed + tests_failed)) skipped=$((skipped + step_skipped))
}

# again_alone LIMIT COMMAND...   Gives failed tests of the last step a second chance: COMMAND NAME runs each by itself, and it has to pass twice.
# More than LIMIT failed tests get no second chance. A test that passes this way is reported as unsteady.
again_alone() {
  local limit=$1 name names
  shift
  mapfile -t names < <(python3 scripts/lib/count_tests.py --failed "$log" | sed '/^$/d')
  [[ ${#names[@]} -gt 0 && ${#names[@]} -le $limit ]] || return 0
  for name in "${names[@]}"; do
    echo "== $name failed beside other tests; now twice by itself:"
    if "$@" "$name" && "$@" "$name"; then
      failed=$((failed - 1)) passed=$((passed + 1))
      unsteady+=("$name")
    fi
  done
}

# Runs the files of tests beside each other, one per core, because each uses one core. Each file's output is printed as a whole.
run_python_tests() {
  compgen -G 'scripts/tests/*_test.py' >/dev/null || return 0
  local outputs status
  outputs=$(mktemp -d)
  # The file that takes longest comes first.
  { ls scripts/tests/vendor_test.py; ls -S scripts/tests/*_test.py; } 2>/dev/null | awk '!seen[$0]++' |
    OUTPUTS=$outputs xargs -P "$(nproc)" -I FILE sh -c '
      name=${0##*/}
      python3 -m unittest discover --start-directory scripts/tests --pattern "$name" >"$OUTPUTS/$name" 2>&1' FILE
  status=$?
  cat "$outputs"/*
  rm -r "$outputs"
  return $status
}

# finish   Prints the line of sums and exits with the verdict.
finish() {
  local name
  # Repeats the failures at the end, because readers of a long log start there.
  cat "$failures"
  for name in "${unsteady[@]}"; do
    echo "unsteady: $name failed beside other tests and passed by itself. Its output is above; find the reason"
  done
  echo "$passed passed, $failed failed, $skipped skipped"
  [[ $failed -eq 0 && $passed -gt 0 ]]
  exit
}
