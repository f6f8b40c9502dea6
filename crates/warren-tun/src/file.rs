//! Three operations that need `unsafe`, in addition to those of `ring.rs`: registering a queue's file for readiness, turning
//! off its offloads, and claiming a device exclusively.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, open};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl, opcode};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tun_rs::SyncDevice;

/// Registers the file with the current tokio runtime for read readiness.
///
/// # Panics
///
/// Outside a tokio runtime with I/O enabled.
pub(crate) fn register(file: Arc<SyncDevice>) -> io::Result<AsyncFd<Arc<SyncDevice>>> {
    // SAFETY: the `Arc` keeps the device alive. Its descriptor never changes and is closed only when the last reference is dropped.
    // `AsyncFd` holds a reference for its whole life.
    unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) }.map_err(io::Error::from)
}

/// Creates a multi-queue device that must not exist yet, and returns one of its queues.
///
/// # Errors
/// `EBUSY` if a device of that name exists, or any other error of the kernel.
pub(crate) fn claim(driver: &str, name: &str) -> io::Result<OwnedFd> {
    let file = open(driver, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mut request = InterfaceRequest { name: [0; 16], flags: EXCLUSIVE_TUN, rest: [0; 22] };
    // The last byte stays 0, which ends the name.
    for (to, from) in request.name.iter_mut().zip(name.bytes().take(15)) {
        *to = from;
    }
    // SAFETY: TUNSETIFF reads and writes an `ifreq`. `InterfaceRequest` has the size and layout of an `ifreq`. The descriptor is
    // open.
    unsafe { ioctl(&file, Setter::<SET_INTERFACE, InterfaceRequest>::new(request)) }?;
    Ok(file)
}

/// `TUNSETIFF` of linux/if_tun.h: `_IOW('T', 202, int)`. Its argument is nevertheless a pointer to an `ifreq`.
const SET_INTERFACE: Opcode = opcode::write::<c_int>(b'T', 202);

/// `IFF_TUN`, `IFF_MULTI_QUEUE`, `IFF_NO_PI`, `IFF_VNET_HDR` and `IFF_TUN_EXCL` of linux/if_tun.h.
const EXCLUSIVE_TUN: u16 = 0x0001 | 0x0100 | 0x1000 | 0x4000 | 0x8000;

/// The part of linux/if.h's `ifreq` that is used here. `rest` fills it up to the 40 bytes of 64-bit kernels.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// Makes the kernel deliver whole packets with complete checksums, on every queue of the device.
///
/// The virtio-net header stays before each packet, but is always zero.
pub(crate) fn disable_offload(file: impl AsFd) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its flags by value and accesses no memory of this process. The borrowed descriptor is open.
    unsafe { ioctl(file, SetOffload { flags: 0 })? };
    Ok(())
}

/// `TUNSETOFFLOAD` of linux/if_tun.h: `_IOW('T', 208, unsigned int)`. Its argument is the flags, not a pointer.
struct SetOffload {
    flags: usize,
}

// SAFETY: the opcode is TUNSETOFFLOAD's, which takes its argument by value and writes nothing back.
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
