//! The file store where the kernel refuses asynchronous reads, as in some containers.

use ebb_engine::PAGE_SIZE;
use ebb_engine::env::{ReadOp, Store, WriteOp};
use ebb_stores::{Facts, FileStore};
use rustix::io::Errno;

/// Refuses io_setup to this thread with EPERM, as container profiles do.
fn forbid_io_setup() -> std::io::Result<()> {
    let filter = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut program = [
        // Load the system call's number; refuse that one, allow the others.
        filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        filter(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            libc::SYS_io_setup as u32,
        ),
        filter(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: plain numbers; then a filter program that outlives the call.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) != 0
    };
    if failed {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

#[test]
fn plain_reads_take_over_and_the_reason_is_kept() {
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.set_len(64 * PAGE_SIZE as u64).unwrap();
    let store = FileStore::from_fd(file.into(), Facts::new(64));
    // The filter holds for the thread that asks for it alone.
    let worker = std::thread::spawn(move || {
        if let Err(error) = forbid_io_setup() {
            eprintln!("skipped: no seccomp filter: {error}");
            return;
        }
        let pages: Vec<_> = (0..16).map(|i| [i as u8 + 1; PAGE_SIZE]).collect();
        let ops: Vec<_> = (0..16)
            .map(|i| WriteOp {
                slot: i * 37 % 64,
                data: &pages[i as usize],
            })
            .collect();
        let mut results = [Ok(()); 16];
        for _ in 0..3 {
            store.write(&ops, &mut results);
            assert_eq!(results, [Ok(()); 16]);
        }
        let mut back = vec![[0; PAGE_SIZE]; 16];
        let mut ops: Vec<_> = back
            .iter_mut()
            .zip(0..)
            .map(|(data, i)| ReadOp {
                slot: i * 37 % 64,
                data,
            })
            .collect();
        store.read(&mut ops, &mut results);
        assert_eq!(results, [Ok(()); 16]);
        assert!(back == pages);
        assert_eq!(store.refusal(), Some(Errno::PERM));
    });
    worker.join().unwrap();
}
