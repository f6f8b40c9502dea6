//! The workers' io_uring rings, which write a batch's packets to the TUN in one system call.

use warren_tun::Ring;

/// One ring for each worker. The rings are made before the process enters its sandbox, which forbids new rings.
#[derive(Debug, Default)]
pub struct Rings(Vec<Ring>);

impl Rings {
    /// Makes a ring for each worker. Makes none if the kernel refuses them or this process's container forbids them. Packets then
    /// go to the TUN one by one.
    pub fn make(workers: u8) -> Self {
        match (0..workers).map(|_| Ring::new()).collect() {
            Ok(rings) => Self(rings),
            Err(error) => {
                tracing::info!(
                    "io_uring is not available ({error}); each write to the TUN takes a system call of its own, and speed suffers a little"
                );
                Self::default()
            }
        }
    }

    /// Whether there are rings.
    pub(crate) fn are_there(&self) -> bool {
        !self.0.is_empty()
    }

    /// Yields each worker's ring, in order. Without rings, yields `None` for each.
    pub(crate) fn shares(self) -> impl Iterator<Item = Option<Ring>> {
        self.0.into_iter().map(Some).chain(std::iter::repeat_with(|| None))
    }
}
