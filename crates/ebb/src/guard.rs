//! The tree's guard (`ebb_tree::guard`): this program again, with the supervisor's socket as its standard input.

use anyhow::{Context, Result};
use ebb_sys::descriptors;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

/// Not ours: who kills `ebb` by its name is not to kill the guard.
const NAME: &std::ffi::CStr = c"tide-guard";

/// Starts the guard; returns its number in the system.
///
/// # Errors
/// The program cannot be executed again.
pub fn launch(socket: OwnedFd) -> io::Result<u32> {
    let mut command = Command::new("/proc/self/exe");
    // As long as the tree lives it would have what the caller gave to the program.
    descriptors::keep_from(&mut command);
    let child = command
        .arg0(NAME.to_string_lossy().as_ref())
        .arg("guard")
        // It holds no folder of the user's.
        .current_dir("/")
        .env_clear()
        .stdin(socket)
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()?;
    Ok(child.id())
}

/// `ebb guard`.
pub fn guard() -> Result<ExitCode> {
    let _ = rustix::thread::set_name(NAME);
    let socket = io::stdin().as_fd().try_clone_to_owned();
    let socket = socket.context("it is started by `ebb run` alone")?;
    rustix::net::sockopt::socket_type(&socket).context("it is started by `ebb run` alone")?;
    // The copy is the one that counts.
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(null)?;
    ebb_tree::guard(socket).context("waiting for the tree")?;
    Ok(ExitCode::SUCCESS)
}
