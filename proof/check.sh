#!/usr/bin/env bash
# Search the model of registered backends exhaustively, and show that it notices each mutation.
#
#   proof/check.sh                  everything, one line for each search
#   proof/check.sh PATTERN          the searches whose name matches
#   proof/check.sh trace MUTATION   the shortest counterexample of a mutation, step by step
#
# A search fails the run if it is cut short in any way. README.md beside this file explains the rest.
set -euo pipefail
cd "$(dirname "$0")"

# Configurations: name, optimization of the compiler (the small ones compile without), sizes.
configurations() {
	cat <<-'END'
		reuse     2  CONNECTS=2 ENTRIES=3 WRITES=2
		kills     2  KILLS=1 CONNECTS=2
		pool      2  SESSIONS=3 PIDS=3
		repeats   2  LOSSES=2 ATTEMPTS=2 TIMEOUTS=1 ENTRIES=3
		awards    2  CANDIDACIES=3 LOSSES=1 ATTEMPTS=2 TIMEOUTS=1
		epochs    2  CANDIDACIES=3 LETGO=1 EARLY=1 ENTRIES=3
		crash     2  CRASHES=1 ATTEMPTS=2 CONNECTS=2
		sweep     2  SWEEPS=1 CONNECTS=2
		again     0  CANDIDACIES=3 LETGO=1 EARLY=1
		letgo     0  LETGO=1 LOSSES=1 ENTRIES=3
		blocks    0  LETGO=1 EARLY=1 BLOCKS=1
		stops     1  STOPS=1 SWALLOWED=1 ATTEMPTS=2 LOSSES=1
		roles     0  SUPERUSERS=1 SESSIONS=3 PIDS=3 WRITES=0 ATTEMPTS=2
		compare   0  COMPARES=1 LETGO=1
	END
}

# Mutations: name, condition, configuration, the property that must turn out to be violated. `implied`
# stands for a part of a condition that the others imply: leaving it out must change nothing.
mutations() {
	cat <<-'END'
		READS_BEFORE_LOCK          1   reuse    G1_nothing_commits_late
		DOES_NOT_WAIT              2   reuse    G1_nothing_commits_late
		TIMEOUT_COMMITS            2   repeats  G1_nothing_commits_late
		SIGNALS_ONCE               2   stops    every_grant_returns
		CACHED_BACKENDS            2   stops    every_grant_returns
		SNAPSHOT_BEFORE_LOCK       3   reuse    G1_nothing_commits_late
		THREE_STATEMENTS           4   stops    every_grant_returns
		INSERTS_UNLOCKED           4   reuse    G1_nothing_commits_late
		FORWARDS_UNCONFIRMED       5   reuse    G1_nothing_commits_late
		SILENCE_IS_YES             5   repeats  G1_nothing_commits_late
		END_DELETES                6   reuse    G1_nothing_commits_late
		LETS_GO_BUSY               7   letgo    G1_all_is_visible
		DELETES_BY_BACKEND         8   repeats  G1_nothing_commits_late
		ENDS_BY_PID                9   reuse    nobody_else_is_ended
		LOOKS_UP_BEFORE            9   reuse    nobody_else_is_ended
		LOOKS_UP_START             9   reuse    no_stranger_is_registered
		SIGNALS_UNTESTED           10  roles    a_doomed_grant_ends_nobody
		SWEEPS_BACKENDS_FIRST      11  sweep    G1_nothing_commits_late
		RECORDS_FIRST              12  repeats  G1_nothing_commits_late
		NOT_FLUSHED                12  crash    G2_epochs_grow
		SPARES_OWN                 13  awards   G1_nothing_commits_late
		FILTERS_BY_EPOCH           13  reuse    G1_nothing_commits_late
		REPEAT_ENDS                13  repeats  a_repeat_ends_nobody
		KEEPS_REGISTRATION         14  kills    G1_nothing_commits_late
		PREPARES                   15  reuse    G1_nothing_commits_late
		ANNOUNCES_OVER_INPUT       16  epochs   G3_written_under_the_epoch_told
		REGISTERS_IN_BLOCK         16  blocks   G3_begun_under_the_epoch
		REGISTERS_UNANNOUNCED      16  epochs   G3_written_under_the_epoch_told
		ANNOUNCES_WHILE_REGISTERED 16  again    implied
		REGISTERS_SUPERSEDED       16  again    implied
		FORWARDS_BEFORE_READ_ONLY  17  epochs   G1_nothing_commits_late
		LETS_GO_WRITABLE           17  epochs   G1_nothing_commits_late
		COMPARES_ROWS_FIRST        18  compare  only_lost_entries_are_missed
	END
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 ran=0

# defines CONFIGURATION prints its sizes as options of the preprocessor.
defines() { configurations | awk -v name="$1" '$1 == name { for (i = 3; i <= NF; i++) print "-D" $i }'; }

# build OPTIMIZATION COMPILER-OPTION... -- DEFINE... makes $work/pan.
build() {
	local options=()
	while [ "$1" != -- ]; do options+=("$1"); shift; done
	shift
	(cd "$work" && spin -a "$@" "$OLDPWD/registered.pml") >"$work/log" 2>&1 &&
		note_steps &&
		"${CC:-gcc}" -w -DNOFAIR -DNOREDUCE -DMEMLIM=4000 -include "$work/steps.h" "${options[@]}" -o "$work/pan" "$work/pan.c" 2>>"$work/log"
}

# note_steps makes the search write the lines of the steps that happened into $work/happened. (SPIN's own list
# of what was not reached counts a step as soon as it is tried.)
note_steps() {
	awk -v steps="$work/steps" '
		/^\tcase [0-9]+: \/\/ STATE/ { match($0, /pml:[0-9]+/); at = substr($0, RSTART + 4, RLENGTH - 4); if (/D_STEP/) print at >>steps }
		/^\t\tsv_save\(\);/ && at != "" { $0 = "happened[" at "] = 1; " $0 }
		{ print }' "$work/pan.m" >"$work/pan.new" && mv "$work/pan.new" "$work/pan.m"
	cat >"$work/steps.h" <<-'END'
		#include <stdio.h>
		static char happened[10000];
		__attribute__((destructor)) static void tell(void) {
			FILE *f = fopen("happened", "a");
			for (int i = 0; f && i < 10000; i++) if (happened[i]) fprintf(f, "%d\n", i);
		}
	END
}

# search OPTION... runs the search. Its result is in $work/out, its seconds of processor in $seconds.
search() {
	local TIMEFORMAT='%U'
	{ time (cd "$work" && ./pan -E -m10000 -w22 "$@" >out 2>err) || true; } 2>"$work/time"
	seconds=$(cat "$work/time")
	states=$(awk '/states, stored/ { print $1 }' "$work/out")
}

# whole reports whether the last search has seen every state.
whole() {
	grep -q 'Full statespace search' "$work/out" && grep -q 'errors: 0$' "$work/out" &&
		! grep -qE 'max search depth too small|Search not completed|out of memory|interrupted|resource' "$work/out" "$work/err"
}

line() { ran=1; printf '%-31s %-8s %9s states %7s s  %s\n' "$@"; }

fail() {
	failed=1
	line "$1" "$2" "${states:--}" "${seconds:--}" "FAILED: $3"
	cat "$work/log" "$work/err" 2>/dev/null | tail -n 5 | sed 's/^/    /'
}

# check_model CONFIGURATION OPTIMIZATION searches the model as it is.
check_model() {
	local sizes
	mapfile -t sizes < <(defines "$1")
	states='' seconds=''
	rm -f "$work/out" "$work/err"
	build "-O$2" -DSAFETY -- "${sizes[@]}" || { fail model "$1" "does not compile"; return; }
	search
	if whole; then
		line model "$1" "$states" "$seconds" "no violation"
	else
		fail model "$1" "$(grep -m 1 -hE 'assertion violated|max search depth|Search not|out of memory' "$work/out" "$work/err" || echo "search not complete")"
	fi
}

# check_mutation NAME CONDITION CONFIGURATION PROPERTY searches for the counterexample.
check_mutation() {
	local sizes found optimization=0
	[ "$4" != implied ] || optimization=1
	mapfile -t sizes < <(defines "$3")
	states='' seconds=''
	rm -f "$work/out" "$work/err"
	build "-O$optimization" -DSAFETY -- "-DM_$1" "${sizes[@]}" || { fail "[$2] $1" "$3" "does not compile"; return; }
	search
	found=$(sed -nE 's/^pan:[0-9]*: assertion violated (.*) \(at depth.*/\1/p' "$work/out" | head -n 1)
	if [ "$4" = implied ] && whole; then
		line "[$2] $1" "$3" "$states" "$seconds" "no violation: the other conditions imply it"
	elif [ "$found" = "$4" ]; then
		line "[$2] $1" "$3" "$states" "$seconds" "counterexample: $found"
	else
		fail "[$2] $1" "$3" "expected $4, found ${found:-no counterexample}"
	fi
}

# check_end shows that every run of the model ends: there is no cycle.
check_end() {
	states='' seconds=''
	rm -f "$work/out" "$work/err"
	build -O2 -DNP -- -DLOSSES=1 -DATTEMPTS=2 -DTIMEOUTS=1 -DLETGO=1 || { fail "every run ends" letgo "does not compile"; return; }
	search -l
	if whole; then line "every run ends" - "$states" "$seconds" "no cycle"; else fail "every run ends" - "a cycle, or search not complete"; fi
}

# check_reached shows that every step of the model happens in some configuration.
check_reached() {
	local never
	never=$(comm -23 <(sort -u "$work/steps") <(sort -u "$work/happened"))
	if [ -n "$never" ]; then
		failed=1
		echo "FAILED: steps of registered.pml that happen in no configuration, by line:" $never
	else
		echo "every step of the model happens in some configuration"
	fi
}

# trace MUTATION prints the first line of every step of its shortest counterexample.
trace() {
	local name condition configuration property sizes
	read -r name condition configuration property < <(mutations | awk -v name="${1#M_}" '$1 == name') || { echo "no mutation $1" >&2; exit 2; }
	mapfile -t sizes < <(defines "$configuration")
	build -O2 -DSAFETY -DREACH -- "-DM_$name" "${sizes[@]}" || { cat "$work/log"; exit 1; }
	search -i
	echo "[$condition] $name in configuration $configuration violates $property:"
	(cd "$work" && spin -p -k registered.pml.trail "-DM_$name" "${sizes[@]}" "$OLDPWD/registered.pml") |
		awk 'FNR == NR { text[FNR] = $0; next }
			/^ *[0-9]+:\tproc/ && !/:init:/ && $1 != last && match($0, /pml:[0-9]+/) {
				last = $1; at = substr($0, RSTART + 4, RLENGTH - 4); sub(/^[ \t]*(:: )?(d_step|atomic)? ?\{?/, "", text[at])
				match($0, /proc +[0-9]+ \([A-Za-z]+/); split(substr($0, RSTART, RLENGTH), part, /[ (]+/)
				printf "%3d  %-12s %s %s line %s: %s\n", ++n, part[3], "process", part[2], at, substr(text[at], 1, 110)
			}' registered.pml -
}

if [ "${1:-}" = trace ]; then
	trace "$2"
	exit
fi
began=$(date +%s)
all=1
[ -z "${1:-}" ] || all=
while read -r name optimization _; do
	[[ "$name" =~ ${1:-.} ]] && check_model "$name" "$optimization"
done < <(configurations)
[ -z "$all" ] || { check_reached; check_end; }
while read -r name condition configuration property; do
	[[ "$name" =~ ${1:-.} ]] && check_mutation "$name" "$condition" "$configuration" "$property"
done < <(mutations)
times >"$work/times"
awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); sum += 60 * t[1] + t[2] } printf "%.0f s of processor", sum }' "$work/times"
echo ", $(($(date +%s) - began)) s"
[ "$ran" = 1 ] || { echo "no search has such a name" >&2; exit 2; }
[ "$failed" = 0 ] || { echo "the model check failed" >&2; exit 1; }
