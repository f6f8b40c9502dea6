# Runs the steps of a check one after the other and adds up the tests in their output. Sourced by scripts/test.

passed=0 failed=0 skipped=0 unsteady=()
log=$(mktemp) failures=$(mktemp)
trap 'rm -f "$log" "$failures"' EXIT

# step NAME COMMAND...   Runs a command; a failure is counted and the next step runs all the same.
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
      # A step that fails without a failed test, such as one that does not compile, is itself the failure.
      failed=$((failed + 1))
      { echo "---- $name" && tail -n 40 "$log"; } >>"$failures"
    fi
  fi
  echo "== $name: $verdict, $((SECONDS - start)) s"
}

# Adds what cargo test and unittest report in $log to the sums.
count_tests() {
  local counts
  counts=$(python3 scripts/lib/count_tests.py "$log") || counts="0 1 0"
  local step_passed step_skipped
  read -r step_passed tests_failed step_skipped <<<"$counts"
  passed=$((passed + step_passed)) failed=$((failed + tests_failed)) skipped=$((skipped + step_skipped))
}

# again_alone LIMIT COMMAND...   Gives tests of the last step that failed beside others a second chance: each has to pass twice with
# nothing beside it, by COMMAND NAME. More than LIMIT are a failure whatever they do alone. Those that pass are named, not hidden.
again_alone() {
  local limit=$1 name names
  shift
  mapfile -t names < <(python3 scripts/lib/count_tests.py --failed "$log" | sed '/^$/d')
  [[ ${#names[@]} -gt 0 && ${#names[@]} -le $limit ]] || return 0
  for name in "${names[@]}"; do
    echo "== $name failed beside others; alone, twice:"
    if "$@" "$name" && "$@" "$name"; then
      failed=$((failed - 1)) passed=$((passed + 1))
      unsteady+=("$name")
    fi
  done
}

run_python_tests() {
  compgen -G 'scripts/tests/*.py' >/dev/null || return 0
  python3 -m unittest discover --start-directory scripts/tests --pattern '*.py'
}

# finish   Prints the one closing line and ends with the verdict.
finish() {
  local name
  # Once more at the end, where a long record is read first.
  cat "$failures"
  for name in "${unsteady[@]}"; do
    echo "unsteady: $name failed beside others and passed alone; its output is above, and the reason wants finding"
  done
  echo "$passed passed, $failed failed, $skipped skipped"
  [[ $failed -eq 0 && $passed -gt 0 ]]
  exit
}
