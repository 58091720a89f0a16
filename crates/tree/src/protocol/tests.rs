//! Packets carry everything, any bytes decode to something or nothing, and names are believed only of their makers.

use super::socket::MAX_REPLY;
use super::*;
use crate::Facts;
use crate::table::{ChildSlot, Config, SlotNumber, VERSION};
use ebb_sys::peer::Peer;
use ebb_sys::proc::Process;
use proptest::prelude::*;
use rustix::fs::{FlockOperation, MemfdFlags};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use std::os::fd::{AsFd, OwnedFd};

#[test]
fn packets_carry_everything() {
    for (slot, taken) in [
        (None, 0),
        (SlotNumber::new(0), 7),
        (SlotNumber::new(511), 0),
    ] {
        let reserved = slot.map(|slot| ChildSlot { slot, taken });
        let hello = Hello {
            version: 3,
            pid: 77,
            reserved,
        };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
    }
    // Another build's is known by its version, whatever its length.
    let other = [&b"H\x03\0\0\0"[..], &[9; 30]].concat();
    let other = Hello::decode(&other).unwrap();
    assert_eq!((other.version, other.reserved), (3, None));
    assert_eq!(Hello::decode(&Hello::new(1, None).encode()[..13]), None);
    let slot = SlotNumber::new(300).unwrap();
    for serves_other_users in [false, true] {
        let settings = Settings {
            config: Config {
                encrypt: serves_other_users,
                ..Config::default()
            },
            user: 70_000,
            serves_other_users,
        };
        match JoinReply::decode(&welcome(slot, &settings)) {
            Some(JoinReply::Welcome(to, said)) => assert_eq!((to, said), (slot, settings)),
            _ => panic!("not a welcome"),
        }
    }
    match JoinReply::decode(&refused("no room")) {
        Some(JoinReply::Refused(why)) => assert_eq!(why, "no room"),
        _ => panic!("not a refusal"),
    }
}

#[test]
fn packets_about_members_and_devices_carry_everything() {
    let mut buf = [0; MAX_PACKET];
    let long = "x".repeat(2000);
    let packet = message(&long, &mut buf);
    assert_eq!(
        MemberPacket::decode(packet),
        Some(MemberPacket::Message(&long.as_bytes()[..1023]))
    );
    assert_eq!(MemberPacket::decode(&POKE_PACKET), Some(MemberPacket::Poke));
    assert_eq!(
        MemberPacket::decode(&ask(70_000, 0x81)),
        Some(MemberPacket::Ask(70_000, 0x81))
    );
    assert_eq!(
        MemberPacket::decode(&USERFAULTFD_PACKET),
        Some(MemberPacket::Userfaultfd)
    );
    for why in [HelperExit::Ends, HelperExit::Exec, HelperExit::Unmanaged] {
        assert_eq!(
            MemberPacket::decode(&helper_exit(why)),
            Some(MemberPacket::HelperExit(why))
        );
    }
    let device = |row, serial, priority| GivenDevice {
        row,
        serial,
        facts: Facts::from_words([1 << 40, 4096, 8]),
        priority,
    };
    let last = device(7, u64::MAX, Some(-2));
    for given in [vec![], vec![device(0, 1, None), last], vec![last; 8]] {
        let decoded = decode_devices(&devices(u32::MAX, &given));
        assert_eq!(decoded, Some((u32::MAX, given)));
    }
    assert_eq!(decode_devices(&devices(0, &[device(8, 1, None)])), None);
}

#[test]
fn packets_of_commands_carry_everything() {
    for request in [
        Request::On("/a:1G,prio=3".into()),
        Request::Off("7".into()),
        Request::Show,
        Request::Counters,
        Request::Stats,
        Request::Limit(LimitChange::default()),
        Request::Limit(LimitChange {
            process: Some(7),
            memory: Some("1G".into()),
            pool_max: Some("none".into()),
            accept_percent: Some(50),
            writeback: Some(false),
        }),
    ] {
        let decoded = Request::decode(&request.encode());
        assert_eq!(decoded, Some((VERSION, Some(request))));
    }
    for reply in [Reply::Progress, Reply::Done, Reply::Failed] {
        let reply = reply("text".into());
        assert_eq!(Reply::decode(&reply.encode()), Some(reply));
    }
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// Whoever closes a file gives up record locks of this process on it, which tells: a close that nobody can see waits for
/// whoever serves the file.
#[test]
fn a_descriptor_that_nobody_asked_for_is_not_received() {
    let (from, to) = pair();
    let file = rustix::fs::memfd_create("locked", MemfdFlags::CLOEXEC).unwrap();
    let inode = rustix::fs::fstat(&file).unwrap().st_ino;
    let is_locked = || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.contains(&format!(":{inode} "))
    };
    rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(is_locked());
    let mut line = [0; MAX_PACKET];
    let line = message("with a descriptor", &mut line).to_vec();
    let request = Request::Show.encode();
    for packet in [&line[..], &POKE_PACKET, &ask(1, 1), b"?", &request] {
        super::send(&from, packet, &[file.as_fd()]).unwrap();
        let (heard, descriptor) = hear(&to, MAX_PACKET).unwrap();
        assert_eq!((&heard[..], descriptor.is_none()), (packet, true));
        assert!(is_locked());
    }
    let hello = Hello::new(7, None).encode();
    for packet in [&hello[..], &USERFAULTFD_PACKET] {
        super::send(&from, packet, &[file.as_fd()]).unwrap();
        let (heard, descriptor) = hear(&to, MAX_PACKET).unwrap();
        assert_eq!((&heard[..], descriptor.is_some()), (packet, true));
    }
    assert!(!is_locked(), "the one that came with the hello was closed");
    assert_eq!(hear(&to, MAX_PACKET).err(), Some(Errno::AGAIN));
    drop(from);
    assert_eq!(hear(&to, MAX_PACKET).unwrap().0, b"");
}

#[test]
fn a_reply_longer_than_a_packet_comes_whole() {
    let (from, to) = pair();
    for length in [0, 1, MAX_REPLY - 2, MAX_REPLY - 1, MAX_REPLY, 5 << 20] {
        let text: String = (0..length)
            .map(|at| char::from(b'a' + (at % 23) as u8))
            .collect();
        for reply in [Reply::Progress, Reply::Done, Reply::Failed] {
            let reply = reply(text.clone());
            reply.send(&from).unwrap();
            assert_eq!(Reply::receive(&to), Ok(Some(reply)), "{length}");
        }
    }
    // A long reply without its file is none, and the file cannot be changed.
    super::send(&from, b"*+", &[]).unwrap();
    assert_eq!(Reply::receive(&to), Err(Errno::PROTO));
    Reply::Done("x".repeat(MAX_REPLY)).send(&from).unwrap();
    let (_, fds) = super::receive(&to).unwrap();
    assert_eq!(rustix::io::write(&fds[0], b"y"), Err(Errno::PERM));
    drop(from);
    assert_eq!(Reply::receive(&to), Ok(None));
}

#[test]
fn a_name_is_believed_if_its_maker_listens() {
    let us = Process::open(std::process::id()).unwrap();
    let name = ControlName {
        pid: us.pid(),
        start_time: us.start_time(),
        random: 7,
    };
    assert_eq!(ControlName::parse(&name.to_string()), Some(name));
    for wrong in [
        "",
        "ebb-tree-",
        "ebb-tree-1-2",
        "ebb-tree-1-2-3",
        "../../etc",
    ] {
        assert_eq!(ControlName::parse(wrong), None, "{wrong}");
    }
    let pid = Some(us.pid());
    let ours = Peer { pid, uid: 7 };
    assert!(name.is_listener(ours, 7));
    // Out of sight.
    assert!(name.is_listener(Peer { pid: None, ..ours }, 7));
    assert!(!name.is_listener(Peer { pid: None, ..ours }, 8));
    assert!(name.is_listener(ours, 8), "seen from a user namespace");
    let timeless = ControlName {
        start_time: 0,
        ..name
    };
    assert!(timeless.is_listener(ours, 7));
    assert!(!timeless.is_listener(ours, 8), "another user's, perhaps");
    let other = Some(us.pid() + 1);
    assert!(
        !name.is_listener(Peer { pid: other, ..ours }, 7),
        "another process"
    );
    let reborn = ControlName {
        start_time: us.start_time() - 1,
        ..name
    };
    assert!(!reborn.is_listener(ours, 7), "it has the number by now");
    // Its maker has ended, and another carries on.
    let (gone, pid) = (
        ControlName {
            pid: u32::MAX >> 1,
            ..name
        },
        Some(u32::MAX >> 1),
    );
    for pid in [pid, Some(us.pid())] {
        assert!(gone.is_listener(Peer { pid, ..ours }, 7));
        assert!(!gone.is_listener(Peer { pid, ..ours }, 8), "another user's");
    }
    // Even if another process has its number by now.
    assert!(reborn.is_listener(Peer { pid: other, ..ours }, 7));
}

proptest! {
    #[test]
    fn any_bytes_decode_to_something_or_nothing(
        packet in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let _ = (Hello::decode(&packet), JoinReply::decode(&packet), MemberPacket::decode(&packet));
        let _ = (decode_devices(&packet), Request::decode(&packet), Reply::decode(&packet));
    }
}
