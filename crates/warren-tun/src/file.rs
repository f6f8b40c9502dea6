//! A queue's open file: its readiness and its offloads, the two things of this crate that need `unsafe`.
#![allow(unsafe_code)]

use std::ffi::{c_uint, c_void};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tun_rs::SyncDevice;

/// Registers the file with the current tokio runtime, to learn when it can be read.
///
/// # Panics
///
/// Outside a tokio runtime that has its I/O driver on.
pub(crate) fn register(file: Arc<SyncDevice>) -> io::Result<AsyncFd<Arc<SyncDevice>>> {
    // SAFETY: the `Arc` keeps the device, whose descriptor never changes and is closed only when the last reference is
    // dropped; `AsyncFd` holds one for as long as it lives.
    unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) }.map_err(io::Error::from)
}

/// Makes the kernel hand over whole packets with complete checksums, on every queue of the device.
///
/// The virtio-net header stays in front of each packet and is then always zero.
pub(crate) fn disable_offload(file: impl AsFd) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its flags by value and reads or writes no memory of this process; the descriptor is
    // open, because it is borrowed.
    unsafe { ioctl(file, SetOffload { flags: 0 })? };
    Ok(())
}

/// `TUNSETOFFLOAD` of linux/if_tun.h: `_IOW('T', 208, unsigned int)`, whose argument is the flags, not a pointer.
struct SetOffload {
    flags: usize,
}

// SAFETY: the opcode is that of TUNSETOFFLOAD, which takes its argument by value and writes nothing back.
unsafe impl Ioctl for SetOffload {
    type Output = ();

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::write::<c_uint>(b'T', 208)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.flags)
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}
