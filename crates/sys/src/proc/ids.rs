//! Users and groups of a thread, in numbers of the user namespace of who reads them: the kernel translates.

use super::file::{Path, number};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Real, effective and saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ids {
    /// Users.
    pub users: [u32; 3],
    /// Groups.
    pub groups: [u32; 3],
}

/// The users and groups of a thread of process `pid`; calls `f` with each supplementary group.
///
/// # Errors
/// ENOENT or ESRCH if it is gone, EIO on unexpected text.
pub fn ids_of(pid: u32, thread: u32, f: impl FnMut(u32)) -> Result<Ids, Errno> {
    let path = Path::new(format_args!("/proc/{pid}/task/{thread}/status"));
    let file = path.open(OFlags::RDONLY)?;
    let mut text = Text::new(f);
    let mut buf = [0; 1024];
    loop {
        match rustix::io::read(&file, &mut buf[..]) {
            Ok(0) => return text.ids().ok_or(Errno::IO),
            Ok(n) => buf[..n].iter().for_each(|byte| text.byte(*byte)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The text of `status`, which comes in parts, as there may be many groups: lines "Name:\tfield\tfield".
pub(super) struct Text<F> {
    /// The word that is being read, as far as there is room.
    word: [u8; 16],
    len: usize,
    line: Line,
    /// Fields of the line so far.
    fields: usize,
    ids: Ids,
    /// Fields of `ids` so far.
    known: usize,
    group: F,
}

/// What a line is about.
enum Line {
    Unnamed,
    Users,
    Groups,
    Supplementary,
    Other,
}

impl<F: FnMut(u32)> Text<F> {
    pub fn new(group: F) -> Self {
        Self {
            word: [0; 16],
            len: 0,
            line: Line::Unnamed,
            fields: 0,
            ids: Ids::default(),
            known: 0,
            group,
        }
    }

    pub fn byte(&mut self, byte: u8) {
        match byte {
            b'\t' | b' ' | b'\n' => self.word_ends(),
            _ => {
                if let Some(place) = self.word.get_mut(self.len) {
                    *place = byte;
                }
                self.len += 1;
            }
        }
        if byte == b'\n' {
            (self.line, self.fields) = (Line::Unnamed, 0);
        }
    }

    fn word_ends(&mut self) {
        let word = self.word.get(..std::mem::take(&mut self.len));
        let word = word.unwrap_or_default();
        if let Line::Unnamed = self.line {
            self.line = match word {
                b"Uid:" => Line::Users,
                b"Gid:" => Line::Groups,
                b"Groups:" => Line::Supplementary,
                _ => Line::Other,
            };
            return;
        }
        let Some(id) = number(word).and_then(|id| u32::try_from(id).ok()) else {
            return;
        };
        let three = match self.line {
            Line::Users => &mut self.ids.users,
            Line::Groups => &mut self.ids.groups,
            Line::Supplementary => return (self.group)(id),
            Line::Unnamed | Line::Other => return,
        };
        // The fourth is that of file systems.
        if let Some(place) = three.get_mut(self.fields) {
            *place = id;
            self.known += 1;
        }
        self.fields += 1;
    }

    /// All of them, if they were there.
    pub fn ids(&self) -> Option<Ids> {
        (self.known == 6).then_some(self.ids)
    }
}
