//! Which device is tried first, for each memory node.
//!
//! Every node has its own list of all devices, best first. Devices of equal rank take
//! turns: each look at the list moves the first of every group of equals behind the others.

use crate::types::{DeviceId, MAX_DEVICES, Node};

/// How devices without a priority of the user's are ranked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeviceChoice {
    /// On each node its own devices first, the others in order of activation.
    #[default]
    PerNode,
    /// In order of activation, the same everywhere: the rule before NUMA was looked at.
    Activation,
    /// All equal, taking turns.
    EqualTurns,
}

/// The priority of a device on its own node, above every other automatic one.
const PROMOTED: i16 = -1;

#[derive(Clone, Copy, Debug)]
struct RankedDevice {
    device: DeviceId,
    /// The priority as the user gave it, if he did.
    priority: Option<i16>,
    node: Option<Node>,
}

/// The lists of all nodes.
pub(in crate::slots) struct DeviceOrder {
    policy: DeviceChoice,
    /// The devices in order of activation.
    members: Vec<RankedDevice>,
    /// `lists[node]`: devices and ranks, ranks falling.
    lists: Vec<Vec<(i16, DeviceId)>>,
}

/// Devices in the order to try them.
pub(in crate::slots) struct OrderedDevices {
    devices: [DeviceId; MAX_DEVICES],
    len: usize,
}

impl OrderedDevices {
    pub fn as_slice(&self) -> &[DeviceId] {
        &self.devices[..self.len]
    }
}

impl DeviceOrder {
    pub fn new(policy: DeviceChoice, nodes: usize) -> Self {
        Self {
            policy,
            members: Vec::new(),
            lists: vec![Vec::new(); nodes.max(1)],
        }
    }

    pub fn add(&mut self, device: DeviceId, priority: Option<i16>, node: Option<Node>) {
        self.members.push(RankedDevice {
            device,
            priority,
            node,
        });
        self.rebuild();
    }

    /// Takes a device out; the automatic priorities after it close the gap.
    pub fn remove(&mut self, device: DeviceId) {
        self.members.retain(|m| m.device != device);
        self.rebuild();
    }

    /// The priority shown for a device: the user's, or the automatic one, from -2 down in
    /// order of activation.
    pub fn priority(&self, device: DeviceId) -> i16 {
        let mut automatic = PROMOTED;
        for m in &self.members {
            automatic -= i16::from(m.priority.is_none());
            if m.device == device {
                return m.priority.unwrap_or(automatic);
            }
        }
        automatic
    }

    fn rebuild(&mut self) {
        let ranks: Vec<i16> = self
            .members
            .iter()
            .map(|m| self.priority(m.device))
            .collect();
        for (node, list) in self.lists.iter_mut().enumerate() {
            list.clear();
            for (m, &rank) in self.members.iter().zip(&ranks) {
                let own = m.node.is_some_and(|n| n.index() == node);
                let rank = match self.policy {
                    _ if m.priority.is_some() => rank,
                    DeviceChoice::PerNode if own => PROMOTED,
                    DeviceChoice::PerNode | DeviceChoice::Activation => rank,
                    DeviceChoice::EqualTurns => PROMOTED,
                };
                list.push((rank, m.device));
            }
            list.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
        }
    }

    /// The devices to try on a node, and the turn passes on.
    pub fn order(&mut self, node: Node) -> OrderedDevices {
        let node = node.index().min(self.lists.len() - 1);
        let list = &mut self.lists[node];
        let mut order = OrderedDevices {
            devices: [DeviceId(0); MAX_DEVICES],
            len: list.len(),
        };
        for (to, (_, device)) in order.devices.iter_mut().zip(list.iter()) {
            *to = *device;
        }
        for equals in list.chunk_by_mut(|a, b| a.0 == b.0) {
            equals.rotate_left(1);
        }
        order
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn letters(choice: &mut DeviceOrder, node: u16) -> String {
        let order = choice.order(Node(node));
        order
            .as_slice()
            .iter()
            .map(|d| char::from(b'A' + d.0))
            .collect()
    }

    fn four(policy: DeviceChoice) -> DeviceOrder {
        let mut choice = DeviceOrder::new(policy, 4);
        for i in 0..4 {
            choice.add(DeviceId(i), None, Some(Node(u16::from(i))));
        }
        choice
    }

    #[test]
    fn each_node_sees_its_own_device_first() {
        let mut choice = four(DeviceChoice::PerNode);
        for (node, want) in ["ABCD", "BACD", "CABD", "DABC"].into_iter().enumerate() {
            assert_eq!(letters(&mut choice, node as u16), want);
        }
        let shown: Vec<_> = (0..4).map(|i| choice.priority(DeviceId(i))).collect();
        assert_eq!(shown, [-2, -3, -4, -5]);
    }

    #[test]
    fn removal_closes_the_gap_and_keeps_promotions() {
        let mut choice = four(DeviceChoice::PerNode);
        choice.remove(DeviceId(1));
        assert_eq!(choice.priority(DeviceId(2)), -3);
        assert_eq!(choice.priority(DeviceId(3)), -4);
        assert_eq!(letters(&mut choice, 3), "DAC");
        assert_eq!(letters(&mut choice, 1), "ACD");
    }

    #[test]
    fn a_users_priority_is_the_same_everywhere_and_equals_take_turns() {
        let mut choice = four(DeviceChoice::PerNode);
        choice.add(DeviceId(4), Some(5), None);
        choice.add(DeviceId(5), Some(5), Some(Node(0)));
        assert_eq!(letters(&mut choice, 2), "EFCABD");
        assert_eq!(letters(&mut choice, 2), "FECABD");
        assert_eq!(letters(&mut choice, 2), "EFCABD");
    }

    #[test]
    fn without_nodes_the_first_activated_leads_and_equal_turns_rotate() {
        let mut choice = four(DeviceChoice::Activation);
        assert_eq!(letters(&mut choice, 3), "ABCD");
        assert_eq!(letters(&mut choice, 3), "ABCD");
        let mut choice = four(DeviceChoice::EqualTurns);
        assert_eq!(letters(&mut choice, 3), "ABCD");
        assert_eq!(letters(&mut choice, 3), "BCDA");
    }
}
