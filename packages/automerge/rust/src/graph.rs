//! The version graph of a join: checked, and in the one order that every join of it uses.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use crate::fault::Fault;
use crate::json::{self, Json};

/// Versions of one graph: twice the longest walk of a provider.
pub const MAX_VERSIONS: usize = 8_192;
/// Bytes of all JSON texts of one graph.
pub const MAX_GRAPH_BYTES: usize = 64 << 20;

/// One version as the caller names it.
#[derive(Debug)]
pub struct Node<'a> {
    pub version: &'a str,
    pub parents: Vec<&'a str>,
    pub json: &'a str,
}

/// Versions in canonical topological order: parents first, the base at 0, ids ascending where the
/// graph leaves a choice. Only what the candidates descend from is left in it.
#[derive(Debug)]
pub struct Graph<'a> {
    pub ids: Vec<&'a str>,
    pub parents: Vec<Vec<usize>>,
    pub values: Vec<Json>,
    /// How many changes at most led from the base to each version.
    pub generations: Vec<u32>,
    /// Positions, ascending: none is an ancestor of another, none has the content of another.
    pub candidates: Vec<usize>,
}

impl<'a> Graph<'a> {
    pub fn new(base: &'a str, nodes: &[Node<'a>], candidates: &[&'a str]) -> Result<Self, Fault> {
        check_sizes(nodes)?;
        let order = order(base, nodes)?;
        let places: HashMap<&str, usize> = order
            .iter()
            .enumerate()
            .map(|(place, &node)| (nodes[node].version, place))
            .collect();
        let parents: Vec<Vec<usize>> = order
            .iter()
            .map(|&node| {
                let parents = nodes[node].parents.iter().map(|parent| places[parent]);
                parents.collect::<BTreeSet<_>>().into_iter().collect()
            })
            .collect();
        let values = order
            .iter()
            .map(|&node| {
                json::parse(nodes[node].json).map_err(|fault| fault.in_version(nodes[node].version))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let named = candidates
            .iter()
            .map(|id| {
                places.get(id).copied().ok_or_else(|| Fault::Graph {
                    problem: "a candidate is none of the nodes",
                    version: (*id).to_owned(),
                })
            })
            .collect::<Result<BTreeSet<_>, _>>()?;
        if named.is_empty() {
            return Err(Fault::Graph {
                problem: "there is no candidate",
                version: base.to_owned(),
            });
        }
        let ids: Vec<&str> = order.iter().map(|&node| nodes[node].version).collect();
        let candidates = distinct(newest(named, &parents), &ids, &values);
        let mut graph = Self {
            ids,
            parents,
            values,
            generations: Vec::new(),
            candidates,
        }
        .pruned();
        graph.count_generations();
        Ok(graph)
    }

    fn count_generations(&mut self) {
        for parents in &self.parents {
            let generations = parents.iter().map(|&parent| self.generations[parent] + 1);
            self.generations.push(generations.max().unwrap_or(0));
        }
    }

    /// Without the versions that no candidate descends from.
    fn pruned(mut self) -> Self {
        let mut needed = vec![false; self.ids.len()];
        needed[0] = true;
        for &candidate in &self.candidates {
            needed[candidate] = true;
        }
        for place in (0..needed.len()).rev() {
            if needed[place] {
                for &parent in &self.parents[place] {
                    needed[parent] = true;
                }
            }
        }
        let mut next = 0;
        let moved: Vec<usize> = needed
            .iter()
            .map(|&kept| {
                next += usize::from(kept);
                next.saturating_sub(1)
            })
            .collect();
        let mut place = 0;
        self.ids.retain(|_| keep(&needed, &mut place));
        place = 0;
        self.values.retain(|_| keep(&needed, &mut place));
        place = 0;
        self.parents.retain(|_| keep(&needed, &mut place));
        let places = self.parents.iter_mut().flatten();
        for old in places.chain(self.candidates.iter_mut()) {
            *old = moved[*old];
        }
        self
    }
}

fn keep(needed: &[bool], place: &mut usize) -> bool {
    *place += 1;
    needed[*place - 1]
}

fn check_sizes(nodes: &[Node<'_>]) -> Result<(), Fault> {
    if nodes.len() > MAX_VERSIONS {
        return Err(Fault::limit("versions", MAX_VERSIONS as u64));
    }
    if nodes.iter().map(|node| node.json.len()).sum::<usize>() > MAX_GRAPH_BYTES {
        return Err(Fault::limit("graph_bytes", MAX_GRAPH_BYTES as u64));
    }
    Ok(())
}

/// Indexes of `nodes` in canonical topological order.
fn order(base: &str, nodes: &[Node<'_>]) -> Result<Vec<usize>, Fault> {
    let fault = |problem, version: &str| Fault::Graph {
        problem,
        version: version.to_owned(),
    };
    let mut indexes = HashMap::with_capacity(nodes.len());
    for (index, node) in nodes.iter().enumerate() {
        if indexes.insert(node.version, index).is_some() {
            return Err(fault("two nodes have one id", node.version));
        }
        match (node.version == base, node.parents.is_empty()) {
            (true, false) => return Err(fault("the base has parents", base)),
            (false, true) => {
                return Err(fault(
                    "a version does not descend from the base",
                    node.version,
                ));
            }
            _ => {}
        }
    }
    if !indexes.contains_key(base) {
        return Err(fault("the base is none of the nodes", base));
    }
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    let mut waiting_for = vec![0_usize; nodes.len()];
    for (index, node) in nodes.iter().enumerate() {
        for parent in node.parents.iter().collect::<BTreeSet<_>>() {
            let &parent = indexes
                .get(parent)
                .ok_or_else(|| fault("a parent is none of the nodes", node.version))?;
            children[parent].push(index);
            waiting_for[index] += 1;
        }
    }
    let mut ready = BinaryHeap::from([Reverse((base, indexes[base]))]);
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(Reverse((_, index))) = ready.pop() {
        order.push(index);
        for &child in &children[index] {
            waiting_for[child] -= 1;
            if waiting_for[child] == 0 {
                ready.push(Reverse((nodes[child].version, child)));
            }
        }
    }
    // Every version but the base has parents, so what never became ready waits for itself.
    match waiting_for.iter().position(|&count| count > 0) {
        Some(index) => Err(fault("a version is its own ancestor", nodes[index].version)),
        None => Ok(order),
    }
}

/// `named` without those that another one descends from: they add nothing to a merge.
fn newest(named: BTreeSet<usize>, parents: &[Vec<usize>]) -> Vec<usize> {
    let mut is_ancestor = vec![false; parents.len()];
    for place in (0..parents.len()).rev() {
        if named.contains(&place) || is_ancestor[place] {
            for &parent in &parents[place] {
                is_ancestor[parent] = true;
            }
        }
    }
    named
        .into_iter()
        .filter(|&place| !is_ancestor[place])
        .collect()
}

/// One of each content, that with the least id: an edit that was made twice counts once.
fn distinct(mut candidates: Vec<usize>, ids: &[&str], values: &[Json]) -> Vec<usize> {
    candidates.sort_unstable_by_key(|&place| ids[place]);
    let mut kept: Vec<usize> = Vec::with_capacity(candidates.len());
    for place in candidates {
        if kept.iter().all(|&other| values[other] != values[place]) {
            kept.push(place);
        }
    }
    kept.sort_unstable();
    kept
}
