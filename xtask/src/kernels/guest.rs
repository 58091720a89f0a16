//! One guest: QEMU, and the process that shows it the machine's files. Both end with the value.

use super::boot_files::BootFiles;
use super::checks::{Check, Programs};
use anyhow::{Context, Result, bail, ensure};
use ebb_harness::tools;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// MiB of each of the two memory nodes.
const NODE: u32 = 1024;
/// Bytes of the disk, which takes what is written to it.
const DISK: u64 = 8 << 30;
/// Until the kernel runs and has its files.
const BOOT: Duration = Duration::from_secs(180);

/// How a check ended.
pub struct Outcome {
    /// The name.
    pub check: String,
    /// The exit status; 124 and 137 where the time was up.
    status: i32,
    /// Seconds it took, on an emulated processor.
    pub seconds: u64,
}

impl Outcome {
    /// Whether it passed.
    pub fn good(&self) -> bool {
        self.status == 0
    }

    /// In a word or two.
    pub fn verdict(&self) -> String {
        match self.status {
            0 => "ok".into(),
            124 | 137 => "TIME IS UP".into(),
            status => format!("FAILED ({status})"),
        }
    }
}

/// A kernel, ready to boot.
pub struct Guest<'a> {
    dir: PathBuf,
    kernel: &'a BootFiles,
}

/// A process that ends with the value.
struct Owned(Child);

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl<'a> Guest<'a> {
    /// A guest with a new disk.
    ///
    /// # Errors
    /// The disk cannot be made.
    pub fn boot(target: &Path, kernel: &'a BootFiles) -> Result<Self> {
        let dir = target.join(&kernel.release);
        fs::create_dir_all(&dir)?;
        let disk = dir.join("disk");
        let _ = fs::remove_file(&disk);
        File::create(&disk)?.set_len(DISK)?;
        let mke2fs = tools::in_path("mke2fs").context("mke2fs is not installed")?;
        let status = Command::new(mke2fs)
            .args(["-q", "-t", "ext4"])
            .arg(&disk)
            .status()?;
        ensure!(status.success(), "mke2fs failed");
        Ok(Self { dir, kernel })
    }

    /// Runs the checks, and answers how each ended. A check that the guest did not come to has failed.
    ///
    /// # Errors
    /// The guest does not boot.
    pub fn run(&self, checks: &[&Check], programs: &Programs) -> Result<Vec<Outcome>> {
        let text: String = checks
            .iter()
            .map(|check| check.line(programs))
            .collect::<Result<_>>()?;
        let initramfs = self.dir.join("initramfs");
        self.kernel.write_initramfs(&initramfs, &text)?;
        let socket = self.dir.join("files.sock");
        let _ = fs::remove_file(&socket);
        let _files = self.show_files(&socket)?;
        let mut guest = self.start(&initramfs, &socket)?;
        let lines = guest.0.stdout.take().context("no output")?;
        let limit = BOOT
            + checks
                .iter()
                .map(|check| Duration::from_secs(check.seconds))
                .sum();
        let watch = self.watch(guest, limit);
        let outcomes = read_report(BufReader::new(lines), &self.kernel.release)?;
        drop(watch.0);
        let _ = watch.1.join();
        let _ = fs::remove_file(self.dir.join("disk"));
        if outcomes.is_none() {
            bail!(
                "{} did not boot: see {}",
                self.kernel.release,
                self.dir.join("console").display()
            );
        }
        let mut outcomes = outcomes.unwrap_or_default();
        let reached = |name: &str, outcomes: &[Outcome]| outcomes.iter().any(|o| o.check == name);
        for name in checks
            .iter()
            .map(|check| check.name.as_str())
            .chain(["kernel log"])
        {
            if !reached(name, &outcomes) {
                outcomes.push(Outcome {
                    check: format!("{name} (not reached)"),
                    status: 137,
                    seconds: 0,
                });
            }
        }
        Ok(outcomes)
    }

    fn show_files(&self, socket: &Path) -> Result<Owned> {
        let log = File::create(self.dir.join("files.log"))?;
        let server = Command::new("/usr/lib/qemu/virtiofsd")
            .arg(format!("--socket-path={}", socket.display()))
            .args([
                "-o",
                "source=/",
                "-o",
                "cache=always",
                "-o",
                "sandbox=chroot",
            ])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("virtiofsd is not installed")?;
        let server = Owned(server);
        let start = Instant::now();
        while !socket.exists() {
            ensure!(
                start.elapsed() < Duration::from_secs(10),
                "virtiofsd does not start"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    fn start(&self, initramfs: &Path, socket: &Path) -> Result<Owned> {
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args([
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-smp",
            "4,sockets=2",
        ]);
        qemu.args(["-m", &format!("{}M", 2 * NODE)]);
        for node in 0..2 {
            let first = 2 * node;
            qemu.arg("-object").arg(format!(
                "memory-backend-memfd,id=m{node},size={NODE}M,share=on"
            ));
            qemu.arg("-numa")
                .arg(format!("node,memdev=m{node},cpus={first}-{}", first + 1));
        }
        qemu.arg("-chardev")
            .arg(format!("socket,id=files,path={}", socket.display()));
        qemu.args(["-device", "vhost-user-fs-pci,chardev=files,tag=machine"]);
        let disk = self.dir.join("disk");
        qemu.arg("-drive").arg(format!(
            "file={},if=virtio,format=raw,cache=unsafe",
            disk.display()
        ));
        qemu.arg("-kernel")
            .arg(&self.kernel.image)
            .arg("-initrd")
            .arg(initramfs);
        qemu.args(["-append", "console=ttyS0 panic=-1 quiet"]);
        qemu.args(["-nodefaults", "-no-reboot", "-display", "none"]);
        qemu.arg("-serial")
            .arg(format!("file:{}", self.dir.join("console").display()));
        qemu.args(["-serial", "stdio"]);
        let log = File::create(self.dir.join("qemu.log"))?;
        let child = qemu
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn();
        Ok(Owned(child.context("QEMU is not installed")?))
    }

    /// Ends the guest when the time is up, or when the sender is dropped.
    fn watch(
        &self,
        guest: Owned,
        limit: Duration,
    ) -> (std::sync::mpsc::Sender<()>, std::thread::JoinHandle<()>) {
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let _ = receiver.recv_timeout(limit);
            drop(guest);
        });
        (sender, thread)
    }
}

/// Follows a guest's report to its end; nothing if it did not boot.
fn read_report(lines: impl BufRead, release: &str) -> Result<Option<Vec<Outcome>>> {
    let mut outcomes = None;
    for line in lines.lines() {
        let Ok(line) = line else {
            break;
        };
        let line = line.trim_end();
        let Some((word, rest)) = line.split_once(' ') else {
            continue;
        };
        match word {
            "release" => outcomes = Some(Vec::new()),
            "begin" => eprintln!("xtask: {release}: {rest}"),
            "|" => println!("{release} {line}"),
            "end" => {
                let mut parts = rest.splitn(3, ' ');
                let mut number = || parts.next()?.parse::<u64>().ok();
                let (status, seconds) = (number(), number());
                let outcome = Outcome {
                    check: parts.next().unwrap_or_default().into(),
                    status: status.and_then(|n| n.try_into().ok()).unwrap_or(-1),
                    seconds: seconds.unwrap_or(0),
                };
                println!("{release}: {}: {}", outcome.check, outcome.verdict());
                outcomes.get_or_insert_default().push(outcome);
            }
            _ => (),
        }
    }
    Ok(outcomes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read() {
        let text = "noise\r\nrelease 6.12\r\nbegin two words\r\n| said\r\nend 101 7 two words\r\nend 0 1 last\r\n";
        let outcomes = read_report(text.as_bytes(), "6.12").unwrap().unwrap();
        let [first, last] = &outcomes[..] else {
            panic!("two checks");
        };
        assert_eq!(
            (first.check.as_str(), first.verdict().as_str()),
            ("two words", "FAILED (101)")
        );
        assert_eq!(first.seconds, 7);
        assert!(last.good());
        assert!(read_report("panic\n".as_bytes(), "6.12").unwrap().is_none());
    }
}
