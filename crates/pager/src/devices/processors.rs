//! Processors, as the engine numbers them: [`MAX_CPUS`] at most. On larger machines some share a number, those of one
//! memory node: by the number the engine finds the devices that are near.

use ebb_engine::{Cpu, Node};

/// Numbers at most.
pub const MAX_CPUS: usize = 64;

/// The numbers of this machine's processors.
pub struct Processors {
    /// The number of each processor.
    numbers: Vec<Cpu>,
    /// The memory node of each number.
    nodes: Vec<Node>,
}

impl Processors {
    /// Numbers them; `nodes` has the memory node of each. Where there are more than numbers, those that share one are
    /// neighbours in the order of nodes: one number for each node at most is shared across.
    pub fn new(nodes: &[u16]) -> Self {
        let count = nodes.len().min(MAX_CPUS);
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        order.sort_by_key(|&cpu| nodes[cpu]);
        let mut this = Self {
            numbers: vec![Cpu(0); nodes.len()],
            nodes: Vec::new(),
        };
        for (place, cpu) in order.into_iter().enumerate() {
            let number = place * count / nodes.len();
            this.numbers[cpu] = Cpu(number as u16);
            if number == this.nodes.len() {
                this.nodes.push(Node(nodes[cpu]));
            }
        }
        this
    }

    /// The number of a processor; the first one's for one that came later.
    pub fn number(&self, cpu: usize) -> Cpu {
        self.numbers.get(cpu).copied().unwrap_or(Cpu(0))
    }

    /// How many numbers there are.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// The memory node of those with a number.
    pub fn node(&self, cpu: Cpu) -> Node {
        self.nodes.get(cpu.index()).copied().unwrap_or(Node(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_has_a_number_of_its_node_and_as_many_share_each() {
        let interleaved = |cpus: u16, nodes: u16| (0..cpus).map(|cpu| cpu % nodes).collect();
        let one_after_the_other =
            |cpus: u16, nodes: u16| (0..cpus).map(|cpu| cpu * nodes / cpus).collect();
        let machines: [Vec<u16>; 6] = [
            vec![0; 2],
            vec![1, 0, 1, 0],
            one_after_the_other(128, 2),
            interleaved(128, 2),
            interleaved(256, 8),
            one_after_the_other(1024, 4),
        ];
        for nodes in machines {
            let processors = Processors::new(&nodes);
            assert_eq!(processors.count(), nodes.len().min(MAX_CPUS));
            let mut users = vec![0; processors.count()];
            for (cpu, node) in nodes.iter().enumerate() {
                let number = processors.number(cpu);
                assert_eq!(processors.node(number), Node(*node), "processor {cpu}");
                users[number.index()] += 1;
            }
            let most = nodes.len().div_ceil(MAX_CPUS);
            assert!(users.iter().all(|&users| (1..=most).contains(&users)));
        }
        // One for each node at most is another's.
        let nodes: Vec<u16> = (0..100).map(|cpu| cpu / 34).collect();
        let processors = Processors::new(&nodes);
        let strangers =
            (0..100).filter(|&cpu| processors.node(processors.number(cpu)) != Node(nodes[cpu]));
        assert!(strangers.count() <= 2);
        assert_eq!(processors.number(5000), Cpu(0), "one that came later");
    }
}
