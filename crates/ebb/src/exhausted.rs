//! `ebb run --on-exhausted`: a command of the user's when a program of the tree is ended for memory.
//!
//! The member says so before it ends; the supervisor writes it for the user, and hands it to the command. Nothing
//! waits for the command.

use crate::say;
use ebb_sys::inherited::Inherited;
use ebb_tree::{Notices, OUT_OF_MEMORY};
use std::ffi::OsString;
use std::io::stderr;
use std::process::{Command, Stdio};

/// Writes the supervisor's lines, and starts the command after those that tell of such an end, with the signals that `ebb`
/// was started with.
pub fn notices(command: Option<OsString>, inherited: Inherited) -> Notices {
    Box::new(move |line| {
        say::line(&format!("ebb: {line}"));
        let command = command.as_ref().filter(|_| line.contains(OUT_OF_MEMORY))?;
        let mut shell = Command::new("/bin/sh");
        inherited.restore_in(&mut shell);
        let started = shell
            .arg("-c")
            .arg(command)
            .env("EBB_PID", std::process::id().to_string())
            .env("EBB_MESSAGE", line)
            .stdin(Stdio::null())
            // Standard output is the program's.
            .stdout(stderr_again())
            .spawn();
        let said = |error: &std::io::Error| {
            say::line(&format!(
                "ebb: --on-exhausted: {error}: is there a /bin/sh?"
            ));
        };
        started.inspect_err(said).ok().map(|shell| shell.id())
    })
}

fn stderr_again() -> Stdio {
    use std::os::fd::AsFd;
    let copy = stderr().as_fd().try_clone_to_owned();
    copy.map_or_else(|_| Stdio::null(), Stdio::from)
}
