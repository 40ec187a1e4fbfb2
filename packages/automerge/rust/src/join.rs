//! The merge of several versions of one JSON value, from the graph that they grew in.
//!
//! Each version becomes an Automerge document: the base's from its JSON, any other's by merging its
//! parents' documents and making one change towards its own JSON. Merging the candidates' documents
//! gives the result. Actors derive from version and path and times are zero, so a graph has one
//! result, whoever computes it.
//!
//! Documents of a join live as long as the join, so they hold only what decides it:
//!
//! - What all versions have in common is left out and put back into the result.
//! - An element of a text is not a code point but a *segment*: a stretch of one version's text that
//!   no version divides. Edit scripts are known before the documents are built (the text before a
//!   change with one parent is that parent's), so stretches are cut beforehand where later changes
//!   will begin and end. Deleting, inserting and merging segments has the effect that it would have
//!   on their code points.
//! - What stands before a change with several parents is known only once they are merged. If its
//!   script begins or ends inside a segment, the cut is noted and the documents are built again
//!   with it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::num::NonZeroU64;

use automerge::{ActorId, Automerge, Change, ExpandedChange};
use sha2::{Digest as _, Sha256};

use crate::fault::Fault;
use crate::graph::{Graph, Node};
use crate::json::{self, Json};
use crate::shared::Shared;
use crate::text::{Budget, Hunk, offset_before, script};
use crate::tree::{self, Splice, Step, Texts};

/// Builds, one for each merge that descends from another at worst, before every text is cut at
/// every code point, where no cut can be missing.
const MAX_BUILDS: usize = 32;
/// Operations of the base; each takes two bytes of its JSON at least, or is an element of a text.
const FIRST_GENERATION: u64 = 1 << 23;
/// Operations of one change. Counters have 32 bits, and a graph has 2¹³ versions at most.
const GENERATION_SPAN: u64 = 1 << 18;
/// Operations of all changes together, in every build, on what documents held before them; each
/// takes about 50 µs.
const MAX_OPERATIONS: u64 = 20_000;
/// Segments are numbered by code points.
const MAX_SEGMENTS: u32 = 0x11_0000 - 0x800;

/// JSON text of the merge of `candidates`.
pub fn join<'a>(
    path: &str,
    base: &'a str,
    nodes: &[Node<'a>],
    candidates: &[&'a str],
    max_text_work: u64,
) -> Result<String, Fault> {
    let mut graph = Graph::new(base, nodes, candidates)?;
    if let [only] = graph.candidates[..] {
        return Ok(json::write(&graph.values[only]));
    }
    let shared = Shared::take(graph.values.iter_mut().collect());
    let mut merged = merge(&graph, path, max_text_work, MAX_BUILDS)?;
    shared.put_back(&mut merged)?;
    Ok(json::write(&merged))
}

fn merge(
    graph: &Graph<'_>,
    path: &str,
    max_text_work: u64,
    max_builds: usize,
) -> Result<Json, Fault> {
    let mut plan = Plan::new(graph, max_text_work);
    let mut operations = 0;
    for build in 0.. {
        let everywhere = build == max_builds;
        let mut segments = Segments::new(graph, &plan, everywhere, operations);
        let merged = build_documents(graph, path, &mut segments)?;
        operations = segments.operations;
        let missing = segments.missing;
        match merged {
            Some(value) if missing.is_empty() => return Ok(value),
            _ if everywhere => break,
            _ => {
                for (place, path, offset) in missing {
                    plan.cut(place, path, offset);
                }
            }
        }
    }
    Err(Fault::Defect {
        problem: "a script does not fit texts that are cut everywhere".to_owned(),
    })
}

type Path<'g> = Vec<Step<'g>>;

/// Scripts and cuts that follow from the JSON of the versions alone.
struct Plan<'g> {
    graph: &'g Graph<'g>,
    budget: Budget,
    /// Of each version with one parent: the scripts of the texts that it changes.
    scripts: Vec<HashMap<Path<'g>, Vec<Hunk>>>,
    /// Of each version: offsets in its texts where what it writes is cut.
    cuts: Vec<HashMap<Path<'g>, BTreeSet<usize>>>,
}

impl<'g> Plan<'g> {
    fn new(graph: &'g Graph<'g>, max_text_work: u64) -> Self {
        let count = graph.values.len();
        let mut plan = Self {
            graph,
            budget: Budget::new(max_text_work),
            scripts: vec![HashMap::new(); count],
            cuts: vec![HashMap::new(); count],
        };
        for place in 0..count {
            if let [parent] = graph.parents[place][..] {
                let (old, new) = (&graph.values[parent], &graph.values[place]);
                plan.compare(place, old, new, &mut Vec::new());
            }
        }
        // Of its own, for what is only foreseen must not decide which scripts are found.
        let mut budget = Budget::new(max_text_work);
        for place in (1..count).rev() {
            if let [parent] = graph.parents[place][..] {
                plan.hand_cuts_down(place, parent);
            } else {
                for &parent in &graph.parents[place] {
                    plan.foresee_cuts(place, parent, &mut budget);
                }
            }
        }
        plan
    }

    fn compare(&mut self, place: usize, old: &'g Json, new: &'g Json, path: &mut Path<'g>) {
        match (old, new) {
            (Json::Text(old), Json::Text(new)) if old != new => {
                let hunks = script(old, new, &mut self.budget);
                self.scripts[place].insert(path.clone(), hunks);
            }
            (Json::List(old), Json::List(new)) => {
                for (index, (old, new)) in old.iter().zip(new).enumerate() {
                    path.push(Step::Element(index));
                    self.compare(place, old, new, path);
                    path.pop();
                }
            }
            (Json::Map(old), Json::Map(new)) => {
                for (name, new) in new {
                    if let Some(old) = old.get(name) {
                        path.push(Step::Member(name));
                        self.compare(place, old, new, path);
                        path.pop();
                    }
                }
            }
            _ => {}
        }
    }

    /// What changes of `place`, and cuts in texts it took over, demand of the texts of its only
    /// parent.
    fn hand_cuts_down(&mut self, place: usize, parent: usize) {
        let (of_parents, of_rest) = self.cuts.split_at_mut(place);
        let wanted = &mut of_parents[parent];
        for (path, hunks) in &self.scripts[place] {
            let ends = hunks.iter().flat_map(|hunk| [hunk.old.start, hunk.old.end]);
            wanted.entry(path.clone()).or_default().extend(ends);
        }
        for (path, cuts) in &of_rest[0] {
            let (old, new) = (&self.graph.values[parent], &self.graph.values[place]);
            if texts_at(old, new, path).is_none() {
                continue;
            }
            let hunks = self.scripts[place].get(path).map_or(&[][..], Vec::as_slice);
            let offsets = cuts.iter().filter_map(|&cut| offset_before(hunks, cut));
            wanted.entry(path.clone()).or_default().extend(offsets);
        }
    }

    /// Where cuts in texts of `place`, a merge, will probably lie in those of one of its parents.
    ///
    /// A merge is seldom changed, so its text is that of each parent with what the others did to
    /// it. Without this, each merge that descends from another would need one build more.
    fn foresee_cuts(&mut self, place: usize, parent: usize, budget: &mut Budget) {
        let (of_parents, of_rest) = self.cuts.split_at_mut(place);
        let wanted = &mut of_parents[parent];
        for (path, cuts) in &of_rest[0] {
            let (old, new) = (&self.graph.values[parent], &self.graph.values[place]);
            let Some((old, new)) = texts_at(old, new, path) else {
                continue;
            };
            let hunks = script(old, new, budget);
            let offsets = cuts.iter().filter_map(|&cut| offset_before(&hunks, cut));
            wanted.entry(path.clone()).or_default().extend(offsets);
        }
    }

    fn cut(&mut self, place: usize, path: Path<'g>, offset: usize) {
        self.cuts[place].entry(path).or_default().insert(offset);
    }
}

/// The texts at `path`, if that of `new` is that of `old`, edited in place.
fn texts_at<'g>(old: &'g Json, new: &'g Json, path: &[Step<'_>]) -> Option<(&'g str, &'g str)> {
    let mut pair = (old, new);
    for step in path {
        pair = match (step, pair) {
            (Step::Member(name), (Json::Map(old), Json::Map(new))) => {
                old.get(*name).zip(new.get(*name))
            }
            (Step::Element(index), (Json::List(old), Json::List(new))) => {
                old.get(*index).zip(new.get(*index))
            }
            _ => None,
        }?;
    }
    match pair {
        (Json::Text(old), Json::Text(new)) => Some((old, new)),
        _ => None,
    }
}

/// A stretch of what one version wrote into one text.
struct Segment<'g> {
    place: usize,
    path: std::rc::Rc<[Step<'g>]>,
    start: usize,
    text: &'g str,
}

/// The segments of one build, and the texts of its documents as elements that stand for segments.
struct Segments<'g, 'p> {
    plan: &'p Plan<'g>,
    graph: &'g Graph<'g>,
    budget: Budget,
    everywhere: bool,
    all: Vec<Segment<'g>>,
    /// The version whose change is being made.
    place: usize,
    missing: Vec<(usize, Path<'g>, usize)>,
    operations: u64,
}

impl<'g, 'p> Segments<'g, 'p> {
    fn new(graph: &'g Graph<'g>, plan: &'p Plan<'g>, everywhere: bool, operations: u64) -> Self {
        Self {
            plan,
            graph,
            budget: plan.budget.clone(),
            everywhere,
            all: Vec::new(),
            place: 0,
            missing: Vec::new(),
            operations,
        }
    }

    /// Elements for what this version writes at `range` of its text.
    fn write(
        &mut self,
        path: &[Step<'g>],
        text: &'g str,
        range: std::ops::Range<usize>,
    ) -> Result<String, Fault> {
        let mut elements = String::new();
        if range.is_empty() {
            return Ok(elements);
        }
        let shared_path: std::rc::Rc<[Step<'g>]> = path.into();
        let mut start = range.start;
        for end in self.cuts_within(path, text, &range) {
            elements.push(element(self.all.len())?);
            self.all.push(Segment {
                place: self.place,
                path: shared_path.clone(),
                start,
                text: &text[start..end],
            });
            start = end;
        }
        Ok(elements)
    }

    /// Ends of the segments of `range`, ascending.
    fn cuts_within(
        &self,
        path: &[Step<'g>],
        text: &str,
        range: &std::ops::Range<usize>,
    ) -> Vec<usize> {
        let mut ends = Vec::new();
        if self.everywhere {
            let starts = text[range.clone()].char_indices();
            ends.extend(starts.skip(1).map(|(at, _)| range.start + at));
        } else if let Some(cuts) = self.plan.cuts[self.place].get(path) {
            ends.extend(cuts.range(range.start + 1..range.end));
        }
        ends.push(range.end);
        ends
    }

    fn segment(&self, element: char) -> Result<&Segment<'g>, Fault> {
        number(element)
            .and_then(|number| self.all.get(number))
            .ok_or_else(|| Fault::Defect {
                problem: "an element stands for no segment".to_owned(),
            })
    }

    /// How many of `ends` come before `offset`, noting a missing cut where it is inside a segment.
    fn position(
        &mut self,
        elements: &[char],
        ends: &[usize],
        offset: usize,
    ) -> Result<usize, Fault> {
        let before = ends.partition_point(|&end| end <= offset);
        let start = if before == 0 { 0 } else { ends[before - 1] };
        if start < offset {
            let segment = self.segment(elements[before])?;
            let cut = segment.start + (offset - start);
            let missing = (segment.place, segment.path.to_vec(), cut);
            self.missing.push(missing);
        }
        Ok(before)
    }
}

impl<'g> Texts<'g> for Segments<'g, '_> {
    fn create(&mut self, path: &[Step<'g>], text: &'g str) -> Result<String, Fault> {
        self.write(path, text, 0..text.len())
    }

    fn edit(
        &mut self,
        path: &[Step<'g>],
        elements: &str,
        text: &'g str,
    ) -> Result<Vec<Splice>, Fault> {
        let elements: Vec<char> = elements.chars().collect();
        let mut ends = Vec::with_capacity(elements.len());
        let mut end = 0;
        for &element in &elements {
            end += self.segment(element)?.text.len();
            ends.push(end);
        }
        let plan = self.plan;
        let found;
        let hunks = if self.graph.parents[self.place].len() == 1 {
            plan.scripts[self.place]
                .get(path)
                .ok_or_else(|| Fault::Defect {
                    problem: "a change has no script".to_owned(),
                })?
        } else {
            let mut old = String::with_capacity(end);
            for &element in &elements {
                old.push_str(self.segment(element)?.text);
            }
            found = script(&old, text, &mut self.budget);
            // Later changes may divide what was taken over here.
            for &cut in plan.cuts[self.place].get(path).into_iter().flatten() {
                if let Some(offset) = offset_before(&found, cut) {
                    self.position(&elements, &ends, offset)?;
                }
            }
            &found
        };
        let mut splices = Vec::with_capacity(hunks.len());
        for hunk in hunks {
            let at = self.position(&elements, &ends, hunk.old.start)?;
            let until = self.position(&elements, &ends, hunk.old.end)?;
            splices.push(Splice {
                at,
                delete: until - at,
                insert: self.write(path, text, hunk.new.clone())?,
            });
        }
        Ok(splices)
    }

    fn read(&self, elements: String) -> Result<String, Fault> {
        let mut text = String::new();
        for element in elements.chars() {
            text.push_str(self.segment(element)?.text);
        }
        Ok(text)
    }

    fn count_operation(&mut self) -> Result<(), Fault> {
        self.operations += 1;
        if self.operations > MAX_OPERATIONS {
            return Err(Fault::limit("operations", MAX_OPERATIONS));
        }
        Ok(())
    }
}

/// Surrogates are no characters.
fn element(number: usize) -> Result<char, Fault> {
    u32::try_from(number)
        .ok()
        .filter(|&number| number < MAX_SEGMENTS)
        .and_then(|number| {
            char::from_u32(if number < 0xd800 {
                number
            } else {
                number + 0x800
            })
        })
        .ok_or_else(|| Fault::limit("segments", u64::from(MAX_SEGMENTS)))
}

fn number(element: char) -> Option<usize> {
    let code = u32::from(element);
    usize::try_from(if code < 0xd800 { code } else { code - 0x800 }).ok()
}

/// The merged value, or none when a cut was missing.
///
/// A version where one is missing gets no document, nor do its descendants; the others are still
/// built, to find what they miss.
fn build_documents<'g>(
    graph: &'g Graph<'g>,
    path: &str,
    segments: &mut Segments<'g, '_>,
) -> Result<Option<Json>, Fault> {
    let mut documents = Documents::new(graph);
    for (place, parents) in graph.parents.iter().enumerate() {
        let Some(mut document) = documents.merged(parents)? else {
            continue;
        };
        let actor = actor(graph.ids[place], path);
        if place > 0 {
            begin_generation(&mut document, graph.generations[place], &actor)?;
        }
        document.set_actor(actor);
        segments.place = place;
        let missing_before = segments.missing.len();
        change(graph, &mut document, segments)?;
        if segments.missing.len() == missing_before {
            if cfg!(test) {
                let read = tree::read(&document, None, segments);
                assert_eq!(read.as_ref(), Ok(&graph.values[place]));
            }
            documents.keep(place, document);
        }
    }
    match documents.merged(&graph.candidates)? {
        Some(merged) => tree::read(&merged, None, segments).map(Some),
        None => Ok(None),
    }
}

/// Let the operations of the next change count from where every change of this generation counts.
///
/// Where two operations meet, their counters decide. Those of documents count all operations
/// before, but how many elements a text has depends on all versions of the join. Two versions must
/// meet in the same way in each join that holds them: the merge that became a version's JSON in one
/// is made again in the next. So an empty change leads up to each change, and generations are far
/// enough apart for any number of operations.
fn begin_generation(
    document: &mut Automerge,
    generation: u32,
    actor: &ActorId,
) -> Result<(), Fault> {
    let start = FIRST_GENERATION + u64::from(generation) * GENERATION_SPAN;
    let change = Change::from(ExpandedChange {
        operations: Vec::new(),
        actor_id: actor.clone(),
        hash: None,
        seq: 1,
        start_op: NonZeroU64::MIN.saturating_add(start),
        time: 0,
        message: None,
        deps: document.get_heads(),
        extra_bytes: Vec::new(),
        author: None,
    });
    Ok(document.apply_changes([change])?)
}

/// One change of `document`, the merge of the parents' documents, towards the value of the version
/// at hand.
fn change<'g>(
    graph: &'g Graph<'g>,
    document: &mut Automerge,
    segments: &mut Segments<'g, '_>,
) -> Result<(), Fault> {
    let place = segments.place;
    let new = &graph.values[place];
    let merged;
    let old = match graph.parents[place][..] {
        [] => None,
        [parent] => Some(&graph.values[parent]),
        _ => {
            merged = tree::read(document, None, segments)?;
            Some(&merged)
        }
    };
    let mut transaction = document.transaction();
    match old {
        None => tree::create(&mut transaction, segments, new)?,
        Some(old) => {
            // Only merging brings conflicts, and the change that follows settles those of scalars.
            let is_thorough = graph.parents[place].len() > 1;
            tree::replace(&mut transaction, segments, old, new, is_thorough)?;
        }
    }
    transaction.commit();
    Ok(())
}

/// The documents built so far, each kept until its last use.
struct Documents {
    kept: Vec<Option<Automerge>>,
    uses_left: Vec<usize>,
}

impl Documents {
    fn new(graph: &Graph<'_>) -> Self {
        let mut uses_left = vec![0; graph.values.len()];
        for &used in graph.parents.iter().flatten().chain(&graph.candidates) {
            uses_left[used] += 1;
        }
        Self {
            kept: vec![None; graph.values.len()],
            uses_left,
        }
    }

    fn keep(&mut self, place: usize, document: Automerge) {
        self.kept[place] = Some(document);
    }

    /// The merge of the documents of `places`, or none where one was not built.
    fn merged(&mut self, places: &[usize]) -> Result<Option<Automerge>, Fault> {
        let Some((&first, rest)) = places.split_first() else {
            return Ok(Some(Automerge::new_with_encoding(tree::ENCODING)));
        };
        let Some(mut merged) = self.take(first) else {
            return Ok(None);
        };
        // All at once: applying changes one by one would cost what is there already each time.
        let mut changes = Vec::new();
        let mut seen = HashSet::new();
        for &place in rest {
            let Some(other) = self.take(place) else {
                return Ok(None);
            };
            let added = merged.get_changes_added(&other);
            changes.extend(
                added
                    .into_iter()
                    .filter(|change| seen.insert(change.hash())),
            );
        }
        merged.apply_changes(changes)?;
        Ok(Some(merged))
    }

    fn take(&mut self, place: usize) -> Option<Automerge> {
        self.uses_left[place] -= 1;
        if self.uses_left[place] == 0 {
            self.kept[place].take()
        } else {
            self.kept[place].clone()
        }
    }
}

/// Lengths first, so that no two pairs are hashed alike.
fn actor(version: &str, path: &str) -> ActorId {
    let mut hash = Sha256::new();
    for part in [version, path] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    ActorId::from(&hash.finalize()[..16])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::PlainTexts;

    /// Deterministic pseudo-random numbers, so that a failure comes again.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % bound
        }

        fn text(&mut self, length: usize) -> String {
            const PARTS: [char; 8] = ['a', 'b', 'c', ' ', 'é', '語', '\u{301}', '👍'];
            (0..self.below(length + 1))
                .map(|_| PARTS[self.below(PARTS.len())])
                .collect()
        }

        fn edited(&mut self, text: &str) -> String {
            let mut chars: Vec<char> = text.chars().collect();
            for _ in 0..self.below(4) {
                let start = self.below(chars.len() + 1);
                let end = (start + self.below(5)).min(chars.len());
                let new = self.text(4);
                chars.splice(start..end, new.chars());
            }
            chars.into_iter().collect()
        }

        fn value(&mut self, old: &Json) -> Json {
            match old {
                Json::Text(text) => Json::Text(self.edited(text)),
                Json::List(list) => {
                    let mut list: Vec<Json> = list.iter().map(|old| self.value(old)).collect();
                    match self.below(6) {
                        0 => list.truncate(self.below(3)),
                        1 => list.push(Json::Text(self.text(6))),
                        _ => {}
                    }
                    Json::List(list)
                }
                Json::Map(map) => {
                    let mut map = map.clone();
                    for name in ["p", "q", "r"] {
                        match self.below(6) {
                            0 => _ = map.remove(name),
                            1 => _ = map.insert(name.to_owned(), Json::Text(self.text(6))),
                            2 => _ = map.insert(name.to_owned(), Json::Int(self.below(3) as i64)),
                            _ => {
                                if let Some(member) = map.get_mut(name) {
                                    *member = self.value(member);
                                }
                            }
                        }
                    }
                    Json::Map(map)
                }
                other => other.clone(),
            }
        }
    }

    struct Version {
        id: String,
        parents: Vec<usize>,
        json: String,
    }

    fn nodes(versions: &[Version]) -> Vec<Node<'_>> {
        versions
            .iter()
            .map(|version| Node {
                version: &version.id,
                parents: version
                    .parents
                    .iter()
                    .map(|&at| &*versions[at].id)
                    .collect(),
                json: &version.json,
            })
            .collect()
    }

    fn joined(versions: &[Version], candidates: &[usize], max_text_work: u64) -> Json {
        let nodes = nodes(versions);
        let candidates: Vec<&str> = candidates.iter().map(|&at| &*versions[at].id).collect();
        let text = join("/c", &versions[0].id, &nodes, &candidates, max_text_work);
        json::parse(&text.expect("a join")).expect("JSON")
    }

    /// A graph as writers make it: each version edits one version, or what two versions merge to.
    fn graph(numbers: &mut Numbers, base: &Json, count: usize, merges: bool) -> Vec<Version> {
        let mut versions = vec![Version {
            id: "base".to_owned(),
            parents: vec![],
            json: json::write(base),
        }];
        for at in 1..count {
            let mut parents = vec![numbers.below(at)];
            if merges && numbers.below(2) == 0 {
                parents.push(numbers.below(at));
            }
            let old = joined(&versions, &parents, u64::MAX);
            versions.push(Version {
                id: format!("v{}-{at}", numbers.below(1_000)),
                parents,
                json: json::write(&numbers.value(&old)),
            });
        }
        versions
    }

    fn base(numbers: &mut Numbers) -> Json {
        let nested = Json::Map(
            [
                ("p".to_owned(), Json::Text(numbers.text(8))),
                ("same".to_owned(), Json::Int(7)),
            ]
            .into(),
        );
        let list = vec![
            Json::Text("same".to_owned()),
            Json::Null,
            Json::Text(numbers.text(8)),
            nested,
            Json::Text("same".to_owned()),
        ];
        let members = [
            ("p".to_owned(), Json::Text(numbers.text(30))),
            ("q".to_owned(), Json::List(list)),
            ("same".to_owned(), Json::Text("same".to_owned())),
        ];
        Json::Map(members.into_iter().collect())
    }

    /// The same join over documents of code points, with every version and member in them.
    fn plain_join(versions: &[Version], candidates: &[usize]) -> Json {
        let mut documents: Vec<Automerge> = Vec::new();
        let merged = |documents: &[Automerge], places: &[usize]| {
            let mut merged = documents[places[0]].clone();
            for &place in &places[1..] {
                merged
                    .merge(&mut documents[place].clone())
                    .expect("a merge");
            }
            merged
        };
        for version in versions {
            let value = json::parse(&version.json).expect("JSON");
            let texts = &mut PlainTexts::default();
            let mut document = Automerge::new_with_encoding(tree::ENCODING);
            if !version.parents.is_empty() {
                document = merged(&documents, &version.parents);
            }
            let old = tree::read(&document, None, texts).ok();
            document.set_actor(actor(&version.id, "/c"));
            let mut transaction = document.transaction();
            match old {
                None => tree::create(&mut transaction, texts, &value),
                Some(old) => tree::replace(&mut transaction, texts, &old, &value, true),
            }
            .expect("a change");
            transaction.commit();
            documents.push(document);
        }
        tree::read(
            &merged(&documents, candidates),
            None,
            &PlainTexts::default(),
        )
        .expect("JSON")
    }

    fn characters(value: &Json) -> Vec<char> {
        let mut characters: Vec<char> = json::write(value).chars().collect();
        characters.sort_unstable();
        characters
    }

    #[test]
    fn two_changes_of_one_base_give_what_documents_give() {
        let mut numbers = Numbers(21);
        for _ in 0..100 {
            let first = base(&mut numbers);
            let versions = graph(&mut numbers, &first, 2, false);
            let other = json::write(&numbers.value(&first));
            let mut versions = versions;
            versions.push(Version {
                id: "other".to_owned(),
                parents: vec![0],
                json: other,
            });
            if versions[1].json != versions[2].json {
                assert_eq!(
                    joined(&versions, &[1, 2], u64::MAX),
                    plain_join(&versions, &[1, 2])
                );
            }
        }
    }

    #[test]
    fn no_character_is_lost_or_doubled() {
        let mut numbers = Numbers(5);
        for _ in 0..200 {
            let text = Json::Text(numbers.text(30));
            let versions = graph(&mut numbers, &text, 7, false);
            let (a, b) = (1 + numbers.below(6), 1 + numbers.below(6));
            if versions[a].json != versions[b].json {
                // The order may differ, where one side made more changes than the other.
                assert_eq!(
                    characters(&joined(&versions, &[a, b], u64::MAX)),
                    characters(&plain_join(&versions, &[a, b]))
                );
            }
        }
    }

    #[test]
    fn how_texts_are_cut_decides_nothing() {
        let mut numbers = Numbers(9);
        for round in 0..60 {
            let first = base(&mut numbers);
            let versions = graph(&mut numbers, &first, 9, true);
            let all: Vec<usize> = (1..9).collect();
            let whole = nodes(&versions);
            let ids: Vec<&str> = all.iter().map(|&at| &*versions[at].id).collect();
            let graph = Graph::new("base", &whole, &ids).expect("a graph");
            for work in [u64::MAX, 0] {
                let plan = Plan::new(&graph, work);
                let mut everywhere = Segments::new(&graph, &plan, true, 0);

                let merged = build_documents(&graph, "/c", &mut everywhere).expect("a build");

                if graph.candidates.len() > 1 {
                    assert_eq!(merged, Some(joined(&versions, &all, work)), "{round}");
                    let at_once = merge(&graph, "/c", work, 0).expect("a merge");
                    assert_eq!(merged, Some(at_once), "{round}");
                }
            }
        }
    }

    #[test]
    fn a_merge_is_made_again_in_every_later_join() {
        let mut numbers = Numbers(13);
        let mut merges = 0;
        for _ in 0..60 {
            let first = base(&mut numbers);
            let mut versions = graph(&mut numbers, &first, 6, false);
            let derived = joined(&versions, &[2, 4, 5], u64::MAX);
            versions.push(Version {
                id: "derived".to_owned(),
                parents: vec![2, 4, 5],
                json: json::write(&derived),
            });
            for at in 7..11 {
                let parent = numbers.below(at);
                let old = json::parse(&versions[parent].json).expect("JSON");
                versions.push(Version {
                    id: format!("later{at}"),
                    parents: vec![parent],
                    json: json::write(&numbers.value(&old)),
                });
            }
            let whole = nodes(&versions);
            let ids: Vec<&str> = versions.iter().map(|version| &*version.id).collect();
            let mut graph = Graph::new("base", &whole, &ids).expect("a graph");
            let Some(place) = graph.ids.iter().position(|&id| id == "derived") else {
                continue;
            };
            if versions[6].json == versions[2].json {
                continue;
            }
            // The same graph, cut for all its versions, but read where the derived version begins.
            graph.candidates = graph.parents[place].clone();
            let plan = Plan::new(&graph, u64::MAX);
            let mut segments = Segments::new(&graph, &plan, false, 0);
            let again = build_documents(&graph, "/c", &mut segments).expect("a build");
            if let Some(again) = again {
                assert_eq!(again, derived);
                merges += 1;
            }
        }
        assert!(merges > 20, "{merges}");
    }
}
