//! The privileges that the kernel grants a daemon.

/// Checks that the process has only CAP_NET_ADMIN, cannot gain more, and has a system call filter.
#[track_caller]
pub fn assert_rights_are_few(pid: i32) {
    for (field, held) in [("CapEff:", 0x1000), ("CapPrm:", 0x1000), ("CapInh:", 0), ("CapAmb:", 0)] {
        for set in of_each_thread(pid, field) {
            assert_eq!(u64::from_str_radix(&set, 16).unwrap(), held, "{field}");
        }
    }
    for (field, wanted) in [("NoNewPrivs:", "1"), ("Seccomp:", "2")] {
        assert!(of_each_thread(pid, field).iter().all(|value| value == wanted), "{field}");
    }
}

/// The first value of a field of `/proc/PID/status`, for each thread.
#[track_caller]
pub fn of_each_thread(pid: i32, field: &str) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let value = |thread: std::fs::DirEntry| {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.unwrap_or_default().split_whitespace().next().unwrap_or_default().to_owned()
    };
    let values: Vec<String> = threads.map(|thread| value(thread.unwrap())).collect();
    assert!(!values.is_empty(), "{pid} has no threads");
    values
}
