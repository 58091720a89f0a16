//! Files that commands write at their end, or once they have begun. They are opened before anything runs, so that a bad
//! path is refused in time. What they hold stays until there is something to write: a command that cannot run costs
//! nobody the report of yesterday. What somebody else wrote since stays too, as does what is in the file that standard
//! output or standard error goes to.

use anyhow::{Result, anyhow};
use std::fs::{File, Metadata};
use std::io::{self, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

/// A file, which is emptied before the first bytes go there.
#[derive(Debug)]
pub struct LateFile {
    file: File,
    /// Flag: it can be emptied. Pipes and terminals cannot, and take what is written all the same.
    is_regular: bool,
    /// Flag: it was emptied.
    begun: bool,
    /// The time of its last change and its length, once it was written.
    left_as: Option<(SystemTime, u64)>,
}

impl LateFile {
    /// Opens the file of an option.
    ///
    /// # Errors
    /// Those of open(2), with the next step.
    pub fn open(option: &str, path: &Path) -> Result<Self> {
        let mut options = File::options();
        let opened = options.write(true).create(true).truncate(false).open(path);
        let file = opened.and_then(|file| {
            let meta = file.metadata()?;
            let standard = as_standard(&meta)?;
            Ok((
                meta.is_file() && standard.is_none(),
                standard.unwrap_or(file),
            ))
        });
        let (is_regular, file) = file.map_err(|error| {
            anyhow!(
                "{option} {}: {error}: give a file that can be written",
                path.display()
            )
        })?;
        Ok(Self {
            file,
            is_regular,
            begun: false,
            left_as: None,
        })
    }

    /// Whether what was written can be replaced.
    pub fn is_regular(&self) -> bool {
        self.is_regular
    }

    /// Replaces its content, unless somebody else has written since.
    ///
    /// # Errors
    /// Those of write(2): a full disk.
    pub fn replace(&mut self, content: &[u8]) -> io::Result<()> {
        if self.left_as.is_some() && self.left_as != self.state() {
            return Ok(());
        }
        self.begun = false;
        self.write_all(content)?;
        self.left_as = self.state();
        Ok(())
    }

    fn state(&self) -> Option<(SystemTime, u64)> {
        let meta = self.file.metadata().ok()?;
        Some((meta.modified().ok()?, meta.len()))
    }
}

/// The descriptor of standard output or standard error again, if that is this file: it has its place there.
fn as_standard(file: &Metadata) -> io::Result<Option<File>> {
    let same = |other: &File| {
        let other = other.metadata();
        other.is_ok_and(|other| (other.dev(), other.ino()) == (file.dev(), file.ino()))
    };
    let (out, err) = (io::stdout(), io::stderr());
    for standard in [out.as_fd(), err.as_fd()] {
        let again = File::from(standard.try_clone_to_owned()?);
        if same(&again) {
            return Ok(Some(again));
        }
    }
    Ok(None)
}

impl Write for LateFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_regular && !self.begun {
            self.file.rewind()?;
            self.file.set_len(0)?;
        }
        self.begun = true;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read;
    use std::os::fd::AsRawFd;

    #[test]
    fn content_stays_until_there_is_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report");
        fs::write(&path, "of yesterday").unwrap();
        let mut file = LateFile::open("-o", &path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"of yesterday");
        file.write_all(b"a").unwrap();
        file.write_all(b"b").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"ab");
        file.replace(b"c").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"c");
        file.replace(b"d").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"d");
        fs::write(&path, "of another").unwrap();
        file.replace(b"e").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"of another");
        let refused = LateFile::open("-o", &dir.path().join("no/such")).unwrap_err();
        let said = refused.to_string();
        assert!(
            said.starts_with("-o ") && said.ends_with("can be written"),
            "{said}"
        );
    }

    #[test]
    fn a_pipe_takes_what_is_written() {
        let (mut read, write) = io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", write.as_raw_fd());
        let mut file = LateFile::open("--stats", Path::new(&path)).unwrap();
        file.replace(b"figures").unwrap();
        assert!(!file.is_regular());
        drop((file, write));
        let mut got = String::new();
        read.read_to_string(&mut got).unwrap();
        assert_eq!(got, "figures");
    }
}
