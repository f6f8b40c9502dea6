"""The rows of scripts/torture, and how their outcomes become a table."""

import re
from dataclasses import dataclass, field

PASSED = "passed"
FAILED = "FAILED"


@dataclass(frozen=True)
class Row:
    """A test of the reliability scorecard in its long form."""

    group: str
    identifier: str
    what: str
    asked: str
    minutes: float
    command: tuple
    environment: dict = field(default_factory=dict)
    # 1 is for every night and within 80 minutes in all; 2 is before a release, beside it.
    tier: int = 1


@dataclass(frozen=True)
class Outcome:
    row: Row
    verdict: str
    measured: str
    seconds: float


def end_to_end(name):
    """The command of one end-to-end test."""
    test = ("cargo", "test", "--release", "--locked", "--package", "warren", "--test", "e2e")
    return (*test, name, "--", "--exact", "--include-ignored", "--nocapture")


def unit(package, name):
    """The command of one test inside a library."""
    test = ("cargo", "test", "--release", "--locked", "--package", package, "--lib")
    return (*test, name, "--", "--exact", "--nocapture")


def bench(*arguments):
    return ("cargo", "run", "--release", "--locked", "--package", "warren-bench", "--", *arguments)


ROWS = [
    Row(
        "cycles",
        "L2",
        "up and down, again and again",
        "500 of 500; memory of the exit +10 % at most, no descriptor or thread more, both hosts and all files as before",
        1.7,
        end_to_end("cycles::cycles_leave_both_hosts_and_the_exit_as_they_were"),
        {"WARREN_CYCLES": "500"},
    ),
    Row(
        "kills",
        "C2 client",
        "SIGKILL at random moments of start, tunnel, reload and stop; then cleanup, or up and down",
        "50 of 50 with 0 lines of difference; a closed kill switch stays closed until then",
        0.7,
        end_to_end("kills::client_killed_at_any_moment_is_undone_by_cleanup_or_by_the_next_up_and_down"),
        {"WARREN_KILLS": "50", "WARREN_SEED": "{seed}"},
    ),
    Row(
        "kills",
        "C2 exit",
        "the same for the exit; then cleanup, or start and stop",
        "50 of 50 with 0 lines of difference",
        1.3,
        end_to_end("kills::exit_killed_at_any_moment_is_undone_by_cleanup_or_by_the_next_start_and_stop"),
        {"WARREN_KILLS": "50", "WARREN_SEED": "{seed}"},
    ),
    Row(
        "holes",
        "F6",
        "black holes of 2 s six times, 20 s and 120 s, with a TCP flow",
        "back in 1 s, 2 s and 5 s; the flow survives, and up to 20 s no connection is made anew",
        4,
        end_to_end("endurance::flow_survives_black_holes"),
        {"WARREN_BLACK_HOLES": "2,2,2,2,2,2,20,120"},
    ),
    Row(
        "holes",
        "F11",
        "the path's MTU goes from 1500 to 1400 to 1300 in silence under a TCP download, and back",
        "never stands still for 10 s; every byte right; no reconnect",
        1,
        end_to_end("path_mtu::a_download_goes_on_within_seconds_each_time_the_path_shrinks_in_silence"),
    ),
    Row(
        "holes",
        "F11 again",
        "an idle tunnel whose path was narrow and is wide again",
        "known on each of four connections, both ways, within 650 s",
        11.5,
        end_to_end("path_mtu::a_path_that_is_wide_again_is_known_within_eleven_minutes_on_an_idle_tunnel"),
        tier=2,
    ),
    Row(
        "flaps",
        "F9",
        "the carrier goes for two seconds, every second time by taking the link down; nothing is sent meanwhile",
        "100 of 100 back; no connection made anew; memory +10 % at most, no descriptor more",
        5.5,
        end_to_end("flaps::a_link_that_comes_and_goes_costs_no_connection_no_memory_and_no_descriptor"),
        {"WARREN_FLAPS": "102", "WARREN_FLAP_SECONDS": "2"},
    ),
    Row(
        "freezes",
        "F14",
        "ten clients are stopped for a minute, longer than the idle timeout; every second one's address changes meanwhile",
        "10 of 10 answered in 3 s",
        1.5,
        end_to_end("alive::a_client_frozen_for_longer_than_the_idle_timeout_is_back_at_once"),
        {"WARREN_FREEZES": "10"},
    ),
    Row(
        "wires",
        "F3, F4",
        "up and down while 30 % of all datagrams are lost three in a row, and while 30 % are spoilt",
        "50 of 50 each, each within a minute",
        4,
        end_to_end("bad_wire::sessions_begin_over_a_path_that_loses_and_spoils_every_third_datagram"),
        {"WARREN_HANDSHAKES": "50"},
    ),
    Row(
        "lockdown",
        "K7",
        "everything is tried from a locked host while daemons start, end, are killed and their exit restarts",
        "0 leaked",
        1.2,
        end_to_end("endurance::nothing_leaves_a_locked_host_while_daemons_come_and_go"),
        {"WARREN_LOCKDOWN_SECONDS": "60"},
    ),
    Row(
        "simulation",
        "endpoints",
        "whole endpoints in virtual time: loss, repeats, reordering, NAT moves, restarts, a stranger",
        "10,000 seeds without a broken promise",
        4,
        unit("warren-quic", "warren_driver::simulation::endpoints_keep_their_promises_over_any_wire"),
        {"WARREN_SIMULATION": "0..10000"},
    ),
    Row(
        "simulation",
        "sessions",
        "both sides' sessions against a model: any order of messages, losses, restarts and the operator's changes",
        "10,000 seeds without a broken promise",
        3,
        unit("warren-session", "simulation::tests::sessions_keep_their_promises_whatever_happens"),
        {"WARREN_SIMULATION": "0..10000"},
    ),
    Row(
        "packages",
        "C8",
        "the package on a Debian of its own: installed twice, in use, removed, installed, purged",
        "twice is as once; remove leaves what the user made, purge nothing",
        2,
        end_to_end("packages::lifecycle::purge_leaves_what_was_before_and_remove_only_what_is_the_users"),
    ),
    Row(
        "packages",
        "U3",
        "the exit is upgraded by its package, again and again, under a client with TCP flows; then the client's own",
        "outage at the 95th percentile 3 s; 95 % of the flows alive; a client is not restarted",
        8,
        end_to_end("packages::lifecycle::upgrade_restarts_the_exit_under_its_clients_and_leaves_a_client_alone"),
        {"WARREN_UPGRADES": "20"},
        tier=2,
    ),
    Row(
        "packages",
        "guide",
        "docs/ten-minutes.md, run as written on two Debian systems; then both boot again",
        "traffic through the exit, at once and after the boot",
        1,
        end_to_end("packages::guide::the_ten_minute_guide_leads_to_traffic_through_the_exit_that_survives_a_reboot"),
    ),
    Row(
        "packages",
        "cloud-init",
        "configs/cloud-init.yaml, run by cloud-init",
        "the invitation on the console enrols a client, whose traffic goes through the exit",
        1,
        end_to_end("packages::recipes::cloud_init_ends_with_a_working_exit_and_an_invitation_on_the_console"),
    ),
    Row(
        "packages",
        "container",
        "configs/Containerfile, its steps on a Debian without systemd, then the exit with the rights of its podman run",
        "traffic through the exit, which has one capability and a read-only system, and leaves nothing",
        2,
        end_to_end("packages::container::container_recipe_makes_an_exit_that_needs_neither_root_nor_a_writable_system"),
        tier=2,
    ),
    Row(
        "packages",
        "S7",
        "the binary of the package is built twice, in two directories, with cargo's files in two",
        "the same bytes, no path of the machine in them; as hardened as S8 asks",
        12,
        ("scripts/reproduce",),
        tier=2,
    ),
    Row(
        "web",
        "web",
        "the exit's page in Chromium: by mouse, by keyboard alone, light and dark, 360 px wide; needs chromium and chromium-driver",
        "log in, see sessions, invite, revoke; contrast 4.5; nothing loaded from elsewhere",
        0.5,
        end_to_end("web::a_browser_works_the_page_by_mouse_by_keyboard_and_on_a_phone"),
    ),
    Row(
        "prometheus",
        "prometheus",
        "a real Prometheus scrapes the exit and evaluates the dashboard and the alert rules; needs prometheus",
        "no scrape refused, every expression and rule evaluated",
        1,
        end_to_end("metrics::prometheus_takes_every_scrape_and_evaluates_every_panel_and_rule"),
    ),
    Row(
        "crowd",
        "L4",
        "100 clients with 4 connections each, of 200 that are enrolled; idle, then 10 packets a second each",
        "up in 30 s; idle at most 10 % of a core; list, status and scrape in 100 ms each; nothing lost; memory at most 30 MiB and 256 KiB a client",
        0.5,
        end_to_end("crowd::many_clients_cost_an_exit_little_and_its_operator_no_waiting"),
        {"WARREN_CROWD": "100"},
    ),
    Row(
        "crowd",
        "L6",
        "three clients at 10 Mbit/s beside one that sends what its connection takes",
        "each of the three gets 90 % of its rate and loses at most 1 %",
        0.5,
        end_to_end("fairness::three_clients_keep_their_rate_beside_one_that_takes_what_it_gets"),
    ),
    Row(
        "wires",
        "B8, B9",
        "an enrolled client breaks QUIC's and the control stream's rules in 30 ways; needs python3",
        "closed with the code that is due, or goes on in bounded room; another client's pings all come back; 8 MiB at most",
        1,
        end_to_end("liars::a_client_that_breaks_the_protocols_is_closed_with_the_reason_and_costs_others_nothing"),
        tier=2,
    ),
    Row(
        "loss",
        "F1",
        "10 MB by TCP inside, over 1, 5 and 10 % loss with cubic and 20 % with bbr, both ways",
        "whole; no half minute with less than 10 KiB/s; no connection made anew",
        2,
        end_to_end("lossy_path::ten_megabytes_arrive_whole_whatever_the_loss_and_never_stand_still"),
    ),
    Row(
        "loss",
        "F2",
        "40 Mbit/s of full packets inside, 20 s each at 0, 5, 13 and 15 % loss, and bursts beyond a slow way out; congestion control off",
        "the MTU keeps, no black hole, nothing too large; 0.9 (1 - p) of it arrives",
        2,
        end_to_end("lossy_path::no_loss_for_however_long_costs_the_mtu_whatever_the_controller"),
        {"WARREN_LOSS_SECONDS": "20"},
    ),
    Row(
        "loss",
        "F2 again",
        "the same, 60 s each, and with cubic and bbr3",
        "the same; of what arrives only without control",
        14,
        end_to_end("lossy_path::no_loss_for_however_long_costs_the_mtu_whatever_the_controller"),
        {"WARREN_LOSS_SECONDS": "60", "WARREN_CONTROLLERS": "off,cubic,bbr3"},
        tier=2,
    ),
    Row(
        "loss",
        "inner TCP",
        "a TCP flow inside, cubic and bbr, by the controller outside and the loss",
        "figures, to choose the default by",
        6,
        end_to_end("lossy_path::what_a_tcp_flow_inside_carries_by_controller_and_loss"),
        tier=2,
    ),
    Row(
        "flows",
        "L3",
        "4, 5 and 50 TCP flows at once, over IPv4 and IPv6",
        "all of them finish; Jain's index 0.8 of 50",
        1,
        end_to_end("full_path::four_five_and_fifty_flows_share_the_tunnel"),
    ),
    Row(
        "flows",
        "L5",
        "a ping through 50 Mbit/s with a queue of 50 ms that are full both ways",
        "p99 at most 20 ms over base and queue; none over 200 ms",
        1,
        end_to_end("full_path::a_ping_gets_through_a_slow_path_that_is_full_both_ways"),
    ),
    Row(
        "flows",
        "L7",
        "64 and 1,200 bytes at twice what the tunnel carries, 20 s each",
        "90 % of its capacity; every packet accounted for",
        2,
        end_to_end("balance::twice_what_the_tunnel_carries_costs_it_nothing_and_every_packet_is_accounted_for"),
    ),
    Row(
        "bounds",
        "B2, R6",
        "200,000 datagrams that no honest client sends, beside a tunnel: any bytes, other versions, what clients say first, spoilt and repeated",
        "at most 10 lines of log a second, 2 MiB and 2 descriptors more; of the tunnel's pings 1 % lost; idle at once",
        0.5,
        end_to_end("bounds::hostile_datagrams_cost_an_exit_no_answer_no_room_no_tunnel_and_few_lines_of_log"),
        {"WARREN_HOSTILE": "200000"},
    ),
    Row(
        "bounds",
        "B5",
        "5,000 and 20,000 Initials a second with forged sources, at an exit that is silent and at one that answers; half of the capacity offered",
        "70 and 40 % of it arrives, no connection ends, 32 MiB more; new tunnels begin in 3 s; all as before 2 s after",
        1.8,
        end_to_end("flood::a_flood_of_initials_leaves_tunnels_most_of_what_they_carry_and_lets_new_ones_begin"),
        {"WARREN_FLOOD_SECONDS": "10"},
    ),
    Row(
        "bounds",
        "R2",
        "an exit with 128 MiB, 100 clients and a minute of 20,000 Initials a second",
        "not ended by the kernel; 96 MiB at most",
        1.5,
        end_to_end("flood::a_hundred_clients_and_a_flood_fit_into_128_mib"),
        {"WARREN_CROWD": "100"},
    ),
    Row(
        "bounds",
        "R3, R6",
        "75 s of an idle tunnel behind a NAT of 30 s, and of a client whose exit is away",
        "0.5 % of a core; of each connection 2 wake-ups and, both ways together, 0.1 packets a second; a ping from the exit is answered; a line of log a second",
        1.8,
        end_to_end("idle::an_idle_tunnel_and_one_without_an_exit_cost_nearly_nothing"),
        {"WARREN_IDLE_SECONDS": "75"},
    ),
    Row(
        "bounds",
        "R3, R6 again",
        "the same for ten minutes",
        "the same; 1 MiB of log at most",
        11,
        end_to_end("idle::an_idle_tunnel_and_one_without_an_exit_cost_nearly_nothing"),
        {"WARREN_IDLE_SECONDS": "600"},
        tier=2,
    ),
    Row(
        "bounds",
        "B6",
        "500 handshakes that stop halfway and 500 keys that nobody has enrolled, which say nothing",
        "closed in 10 s, 64 KiB each; all but 5 MiB of it back, also the second time",
        0.8,
        end_to_end("endless::handshakes_that_stop_halfway_and_keys_that_say_nothing_are_forgotten_in_seconds"),
    ),
    Row(
        "bounds",
        "R5",
        "a hole of 5 s under 10,000 packets of 1,200 bytes a second over four connections",
        "4 MiB more at most beside what the connections may hold; of 20,000 packets after it 1 % older than a second",
        0.2,
        end_to_end("stalled_path::a_path_that_stands_still_for_five_seconds_fills_no_memory_and_delivers_nothing_old"),
    ),
    Row(
        "bounds",
        "R7",
        "10,000 sessions, refused keys and reloads in a process that counts its bytes; then 1,000 with a leak, the control",
        "live heap +64 KiB at most after a warm-up of 2,000",
        1,
        ("cargo", "test", "--release", "--locked", "--package", "warren-quic", "--test", "live_heap", "--", "--nocapture"),
        {"WARREN_OPERATIONS": "10000"},
    ),
    Row(
        "bounds",
        "R7 daemon",
        "4,000 reloads, sessions and refused keys each, at an exit as it runs",
        "in the second half the exit grows by 1 MiB at most",
        2,
        end_to_end("endless::ten_thousand_reloads_sessions_and_refusals_leave_the_exit_as_large_as_it_was"),
        tier=2,
    ),
    Row(
        "faults",
        "F17",
        "system calls on sockets and TUN fail in turns or altogether, 14 ways in each daemon, by strace; needs strace",
        "both daemons alive; traffic back 2 s after; 10 lines of log a second",
        1.2,
        end_to_end("system_calls::system_calls_that_fail_end_no_daemon_and_no_tunnel"),
        {"WARREN_FAULT_SECONDS": "2"},
    ),
    Row(
        "pool",
        "A7",
        "a pool of five addresses: 1,000 clients come and go",
        "no address twice; one too many is told within 2 s",
        0.4,
        end_to_end("small_pool::clients_that_come_and_go_never_share_an_address_and_one_too_many_is_told_at_once"),
        {"WARREN_CHURN": "1000"},
    ),
    Row(
        "pool",
        "A7 crash",
        "a client of a full pool crashes while others ask for an address",
        "its address is another's 5 s after the idle timeout of 50 s at the latest",
        1,
        end_to_end("small_pool::the_address_of_a_client_that_crashed_is_another_s_once_its_time_is_up"),
    ),
    Row(
        "state",
        "C6 memory",
        "exit and client killed by the kernel at 48 MiB; then cleanup, or start and stop",
        "0 lines of difference; a closed kill switch stays closed until then",
        0.2,
        end_to_end("out_of_memory::daemons_killed_for_want_of_memory_are_undone_by_cleanup_or_by_the_next_start_and_stop"),
    ),
    Row(
        "state",
        "C6 files",
        "whoever writes the exit's clients, the exit or a command, is killed meanwhile",
        "200 of 200 the old file or the new one",
        1.5,
        end_to_end("state_files::whoever_is_killed_while_it_writes_the_clients_leaves_the_old_ones_or_the_new"),
        {"WARREN_STATE_KILLS": "200"},
        tier=2,
    ),
    Row(
        "properties",
        "properties",
        "every property test, with cases of their own",
        "no case fails",
        5,
        ("cargo", "test", "--release", "--locked", "--workspace", "--no-fail-fast", "--", "propert", "simulation"),
        {"PROPTEST_CASES": "5000", "PROPTEST_RNG_SEED": "{seed}"},
    ),
    Row(
        "properties",
        "properties again",
        "the same, for longer",
        "no case fails",
        20,
        ("cargo", "test", "--release", "--locked", "--workspace", "--no-fail-fast", "--", "propert", "simulation"),
        {"PROPTEST_CASES": "20000", "PROPTEST_RNG_SEED": "{seed}"},
        tier=2,
    ),
    Row("fuzz", "B1", "every fuzz target for half a minute", "no input makes one fail", 5, ("scripts/fuzz", "30")),
    Row("fuzz", "B1 again", "every fuzz target for ten minutes", "no input makes one fail", 85, ("scripts/fuzz", "600"), tier=2),
    Row(
        "memory",
        "S6 address",
        "tests of warren-tun and warren-quic on TUN devices and sockets under AddressSanitizer and LeakSanitizer",
        "no finding; each of three planted bugs is one",
        5,
        ("scripts/sanitize", "address"),
        tier=2,
    ),
    Row(
        "memory",
        "S6 Miri",
        "receive buffers and control messages in Miri; needs nightly Rust with miri and rust-src",
        "no finding; each of four planted bugs is one",
        0.3,
        ("scripts/sanitize", "miri"),
    ),
    Row("soak", "L1 again", "an hour at 70 % of the capacity", "as L1", 64, bench("soak", "--minutes", "60"), tier=2),
    Row("setup", "setup", "up and down over a path of 10 ms, 100 times", "19 of 20 have the first reply within 500 ms of `up`; every `down` within 1 s", 1, bench("setup", "--turns", "100")),
    Row("soak", "L1", "ten minutes at 70 % of the capacity", "memory, descriptors and threads keep; every sum holds; no warning", 14, bench("soak")),
    Row("wire", "wire", "the link emulator's own test", "every line holds", 2, bench("wire", "--self-test")),
]

MEASURED = re.compile(r"^measured: (.*)$", re.MULTILINE)
TESTS = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed", re.MULTILINE)
PANIC = re.compile(r"^thread '.*panicked at .*\n(.*)$", re.MULTILINE)


def judge(row, code, lines, seconds):
    """What a row that has ended is worth: its exit code decides, and a test that did not run has not passed."""
    text = "".join(lines)
    tests = TESTS.findall(text)
    is_test = "test" in row.command[:2]
    ran = sum(int(passed) + int(failed) for passed, failed in tests) > 0 and "skipped: " not in text
    passed = code == 0 and (ran or not is_test)
    return Outcome(row, PASSED if passed else FAILED, measured(text, tests, code), seconds)


def measured(text, tests, code):
    """What a row says that it measured; else why it failed, else how many tests ran."""
    said = MEASURED.findall(text)
    panics = PANIC.findall(text)
    if said or panics:
        return "; ".join(said + panics)
    if tests:
        passed = sum(int(passed) for passed, _ in tests)
        failed = sum(int(failed) for _, failed in tests)
        return f"{passed} tests passed, {failed} failed"
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
    return last or f"exit code {code}"


def table(outcomes):
    """A Markdown table with a line for each outcome."""
    head = "| row | what | asked | measured | minutes | verdict |\n|---|---|---|---|---:|---|\n"
    return head + "".join(line(outcome) for outcome in outcomes)


def line(outcome):
    row = outcome.row
    cells = [row.identifier, row.what, row.asked, outcome.measured, f"{outcome.seconds / 60:.1f}", outcome.verdict]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
