//! The words of `ebb top`: for `--help`, and for the keys' help on the screen.

/// Definitions, one a line.
pub const WORDS: &str = "\
some     share of time in which a thread of the tree waited for a page
full     the part of it in which no thread of the tree ran meanwhile
         where several processes wait, estimated from each one's
zero     faults on memory never touched before
cache    on pages still in memory;  pool, device: on pages from there
DATA, COMPR, TOTAL  pages in the pool, compressed, the memory it takes
map      clusters of a device:  . free  : partly used  | full
         leased by the chosen process:  - empty  + partly used  # full";

/// The keys.
pub const KEYS: &str = "\
s        order: faults, memory, waiting, pid
j k      choose a process (or the arrows)
t        the list of trees
p        pause;  q Esc: quit;  ?: these words, or not";
