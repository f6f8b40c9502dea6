//! Pins processes and threads to cores, so that one side of a test does not take the other side's processor time.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// One of the cores that this thread may use.
#[derive(Clone, Copy, Debug)]
pub struct Core(usize);

impl Core {
    /// The first two cores that this thread may use.
    pub fn two() -> [Self; 2] {
        let allowed = sched_getaffinity(None).unwrap();
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).map(Self);
        std::array::from_fn(|_| cores.next().expect("this test needs two cores"))
    }

    /// Pins all current threads of a process to this core.
    pub fn take_process(self, pid: i32) {
        for thread in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
            let thread = thread.unwrap().file_name().into_string().unwrap().parse().unwrap();
            sched_setaffinity(Pid::from_raw(thread), &self.alone()).unwrap();
        }
    }

    /// Pins this thread, and the threads and processes that it starts from now on, to this core.
    pub fn take_this_thread(self) {
        sched_setaffinity(None, &self.alone()).unwrap();
    }

    fn alone(self) -> CpuSet {
        let mut set = CpuSet::new();
        set.set(self.0);
        set
    }
}
