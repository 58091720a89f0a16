//! `/proc/PID/status`, which is as long as its list of groups: up to some hundred KiB. Only lines that are wanted are kept.

use rustix::fd::AsFd;
use rustix::io::Errno;

/// Bytes of a line that count. Longer ones are lists, of groups or processors.
const LINE: usize = 64;

/// The lines that begin with one of these names, in their order, as far as there is room.
///
/// # Errors
/// Those of read(2).
pub fn lines<'a>(file: impl AsFd, names: &[&[u8]], kept: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let (mut line, mut len, mut end) = ([0; LINE], 0, 0);
    let mut take = |byte: u8| {
        if let Some(place) = line.get_mut(len) {
            *place = byte;
        }
        len += 1;
        if byte != b'\n' {
            return;
        }
        let whole = &line[..std::mem::take(&mut len).min(LINE)];
        let wanted = names.iter().any(|name| whole.starts_with(name));
        if let Some(room) = kept.get_mut(end..end + whole.len()).filter(|_| wanted) {
            room.copy_from_slice(whole);
            end += whole.len();
        }
    };
    let mut part = [0; 1024];
    loop {
        match rustix::io::read(&file, &mut part[..]) {
            Ok(0) => return Ok(&kept[..end]),
            Ok(n) => part[..n].iter().for_each(|byte| take(*byte)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn lines_behind_a_long_list_are_found() {
        let mut file = tempfile::tempfile().unwrap();
        write!(file, "Name:\tVmPin: 1 kB\nGroups:\t").unwrap();
        for group in 0..20_000 {
            write!(file, "{} ", 4_000_000_000u32 + group).unwrap();
        }
        write!(file, "\nVmPin:\t     8 kB\nVmPTE:\t   76 kB\nSigCgt:\t0\n").unwrap();
        let mut kept = [0; 128];
        let mut of = |names: &[&[u8]]| {
            use std::io::Seek;
            file.rewind().unwrap();
            String::from_utf8_lossy(lines(&file, names, &mut kept).unwrap()).into_owned()
        };
        assert_eq!(of(&[b"VmPTE:"]), "VmPTE:\t   76 kB\n");
        assert_eq!(
            of(&[b"VmPin:", b"SigCgt:"]),
            "VmPin:\t     8 kB\nSigCgt:\t0\n"
        );
    }
}
