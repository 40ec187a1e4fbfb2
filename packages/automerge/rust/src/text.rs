//! The edit script between two texts, at a bounded price.
//!
//! Units, finest first: extended grapheme clusters, words, lines, the whole. A script over one kind
//! of unit is a shortest one. Every step towards it is counted; a search that would run out of
//! steps, or finds more places than a change should have, is given up for the next coarser unit.
//! The whole is always possible, so a script always comes back. What is common at both ends costs
//! nothing but its comparison.
//!
//! Two searches find shortest scripts. The [`Walk`] (Myers) is cheap for few differences, however
//! long the texts are; the [`Table`] (Hyyrö) is cheap for short texts, however many differences
//! there are. Searches of libraries were not taken: they bound no worst case, and recurse as deep
//! as the input is long.

use std::collections::HashMap;
use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation as _;

/// Steps of one search. Enough for the table of two texts of 16,000 units each.
pub const DEFAULT_WORK: u64 = 4_000_000;
/// A step of the walk takes about as long as this many of the table.
const WALK_STEP: u64 = 8;
/// Up to this price the table is always cheaper than trying the walk first.
const SMALL_TABLE: u64 = 8_192;
/// All scripts of one join together may take this many times the steps of one.
const TOTAL_FACTOR: u64 = 16;
/// Places of one script. Each becomes a few operations, which cost far more than steps of a search.
///
/// A text with a change every few letters was written anew: coarser units then cost less, and where
/// two such texts meet, their words stay together.
fn most_hunks(bytes: usize) -> usize {
    (16 + bytes / 16).min(128 + bytes / 64)
}

/// `old` is replaced by `new`: byte ranges on cluster boundaries, ascending, never adjacent, never
/// both empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hunk {
    pub old: Range<usize>,
    pub new: Range<usize>,
}

/// What searches may still cost.
#[derive(Debug, Clone)]
pub struct Budget {
    search: u64,
    total: u64,
}

impl Budget {
    pub fn new(search: u64) -> Self {
        Self {
            search,
            total: search.saturating_mul(TOTAL_FACTOR),
        }
    }
}

/// The script that turns `old` into `new`; empty when they are equal.
pub fn script(old: &str, new: &str, budget: &mut Budget) -> Vec<Hunk> {
    if old == new {
        return Vec::new();
    }
    let old = Text::new(old);
    let new = Text::new(new);
    let start = common_prefix(&old, &new);
    let end = common_suffix(&old, &new, start);
    let old = old.between(start, end);
    let new = new.between(start, end);
    let mut hunks = middle_script(&old, &new, budget);
    for hunk in &mut hunks {
        hunk.old = hunk.old.start + start..hunk.old.end + start;
        hunk.new = hunk.new.start + start..hunk.new.end + start;
    }
    hunks
}

/// The offset in the old text that `offset` in the new one stands for, or none inside new material.
pub fn offset_before(hunks: &[Hunk], offset: usize) -> Option<usize> {
    let following = hunks.partition_point(|hunk| hunk.new.end < offset);
    match hunks.get(following) {
        Some(hunk) if hunk.new.contains(&offset) && offset > hunk.new.start => None,
        Some(hunk) if offset == hunk.new.end => Some(hunk.old.end),
        Some(hunk) => Some(hunk.old.start - (hunk.new.start - offset)),
        None => {
            let (old_end, new_end) = hunks
                .last()
                .map_or((0, 0), |hunk| (hunk.old.end, hunk.new.end));
            Some(old_end + (offset - new_end))
        }
    }
}

fn middle_script(old: &Text<'_>, new: &Text<'_>, budget: &mut Budget) -> Vec<Hunk> {
    if !old.text.is_empty() && !new.text.is_empty() {
        for unit in [Unit::Cluster, Unit::Word, Unit::Line] {
            if let Some(hunks) = unit_script(old, new, unit, budget) {
                return hunks;
            }
        }
    }
    vec![Hunk {
        old: 0..old.text.len(),
        new: 0..new.text.len(),
    }]
}

fn common_prefix(old: &Text<'_>, new: &Text<'_>) -> usize {
    let pairs = old.text.bytes().zip(new.text.bytes());
    let mut at = pairs.take_while(|(a, b)| a == b).count();
    while !(old.is_bound(at) && new.is_bound(at)) {
        at -= 1;
    }
    at
}

fn common_suffix(old: &Text<'_>, new: &Text<'_>, start: usize) -> usize {
    let old_rest = old.text.as_bytes()[start..].iter().rev();
    let new_rest = new.text.as_bytes()[start..].iter().rev();
    let pairs = old_rest.zip(new_rest);
    let mut length = pairs.take_while(|(a, b)| a == b).count();
    while !(old.is_bound(old.text.len() - length) && new.is_bound(new.text.len() - length)) {
        length -= 1;
    }
    length
}

/// A text and where it may be divided: between extended grapheme clusters.
struct Text<'a> {
    text: &'a str,
    /// Of each byte, whether a cluster begins with it; none when one begins with every byte.
    ///
    /// In one pass: to ask for a single place may mean to read everything before it.
    starts: Option<Vec<bool>>,
}

impl<'a> Text<'a> {
    fn new(text: &'a str) -> Self {
        if text.is_ascii() && !text.contains('\r') {
            return Self { text, starts: None };
        }
        let mut starts = vec![false; text.len()];
        for (at, _) in text.grapheme_indices(true) {
            starts[at] = true;
        }
        Self {
            text,
            starts: Some(starts),
        }
    }

    /// Without `start` bytes in front and `end` bytes at the back, both on cluster boundaries.
    fn between(self, start: usize, end: usize) -> Self {
        let range = start..self.text.len() - end;
        Self {
            text: &self.text[range.clone()],
            starts: self.starts.map(|starts| starts[range].to_vec()),
        }
    }

    fn is_bound(&self, at: usize) -> bool {
        match &self.starts {
            Some(starts) => starts.get(at).copied().unwrap_or(true),
            None => true,
        }
    }

    /// Ends of the units, where clusters end too: ascending, the last being the length of the text.
    fn ends(&self, unit: Unit) -> Vec<usize> {
        let is_bound = |at: &usize| self.is_bound(*at);
        let end = |(at, unit): (usize, &str)| at + unit.len();
        match unit {
            Unit::Cluster => (1..=self.text.len()).filter(is_bound).collect(),
            Unit::Word => {
                let words = self.text.split_word_bound_indices();
                words.map(end).filter(is_bound).collect()
            }
            Unit::Line => {
                let lines = self.text.split_inclusive('\n').scan(0, |at, line| {
                    *at += line.len();
                    Some(*at)
                });
                lines.filter(is_bound).collect()
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Unit {
    Cluster,
    Word,
    Line,
}

fn unit_script(
    old: &Text<'_>,
    new: &Text<'_>,
    unit: Unit,
    budget: &mut Budget,
) -> Option<Vec<Hunk>> {
    let allowed = budget.search.min(budget.total);
    let old_bounds = old.ends(unit);
    let new_bounds = new.ends(unit);
    // Reading the units is part of the price.
    let reading = (old_bounds.len() + new_bounds.len()) as u64;
    if reading > allowed {
        return None;
    }
    budget.total -= reading;
    let mut names = Names::default();
    let old_units = names.of(old.text, &old_bounds);
    let new_units = names.of(new.text, &new_bounds);
    let hunks = shortest(&old_units, &new_units, names.count(), budget)?;
    if hunks.len() > most_hunks(old.text.len().max(new.text.len())) {
        return None;
    }
    let start_of = |bounds: &[usize], unit: usize| if unit == 0 { 0 } else { bounds[unit - 1] };
    let hunks = hunks.iter().map(|hunk| Hunk {
        old: start_of(&old_bounds, hunk.old.start)..start_of(&old_bounds, hunk.old.end),
        new: start_of(&new_bounds, hunk.new.start)..start_of(&new_bounds, hunk.new.end),
    });
    Some(hunks.collect())
}

/// A shortest script over units, if it can be had.
fn shortest(old: &[u32], new: &[u32], names: usize, budget: &mut Budget) -> Option<Vec<Hunk>> {
    let allowed = budget.search.min(budget.total);
    let table_price = Table::price(old, new);
    let has_table = table_price <= allowed;
    if !has_table || table_price > SMALL_TABLE {
        let walk_steps = table_price.min(allowed) / WALK_STEP;
        // A walk over n differences takes about n²/4 steps; units that one side alone has are
        // differences.
        let surplus = unmatched_units(old, new, names) as u64;
        if surplus * surplus / 4 <= walk_steps {
            let mut walk = Walk::new(old, new, walk_steps);
            let arrived = walk.run();
            budget.total -= WALK_STEP * (walk_steps - walk.steps_left);
            if arrived {
                return Some(walk.hunks);
            }
        }
    }
    if !has_table || table_price > budget.total {
        return None;
    }
    budget.total -= table_price;
    Some(Table::new(old, new, names).hunks(old.len(), new.len()))
}

/// Numbers for units: equal units have equal numbers.
#[derive(Default)]
struct Names<'a> {
    others: HashMap<&'a str, u32>,
}

impl<'a> Names<'a> {
    /// The byte of a unit of one byte is its number.
    const SINGLES: u32 = 0x80;

    fn of(&mut self, text: &'a str, bounds: &[usize]) -> Vec<u32> {
        let mut start = 0;
        let mut units = Vec::with_capacity(bounds.len());
        for &end in bounds {
            let unit = match text.as_bytes()[start..end] {
                [single] => u32::from(single),
                _ => {
                    let next = Self::SINGLES + self.others.len() as u32;
                    *self.others.entry(&text[start..end]).or_insert(next)
                }
            };
            units.push(unit);
            start = end;
        }
        units
    }

    fn count(&self) -> usize {
        Self::SINGLES as usize + self.others.len()
    }
}

fn unmatched_units(old: &[u32], new: &[u32], names: usize) -> usize {
    let mut balance = vec![0_i64; names];
    for &unit in old {
        balance[unit as usize] += 1;
    }
    for &unit in new {
        balance[unit as usize] -= 1;
    }
    balance
        .iter()
        .map(|count| count.unsigned_abs() as usize)
        .sum()
}

/// For each prefix of the new units, which old units lengthen the longest common subsequence.
///
/// Row by row as bits, 64 old units a step: a clear bit says that its unit adds one to the length
/// that the old units up to it have in common with the new units up to the row.
struct Table {
    words: usize,
    rows: Vec<u64>,
}

impl Table {
    fn price(old: &[u32], new: &[u32]) -> u64 {
        old.len().div_ceil(64) as u64 * new.len() as u64
    }

    fn new(old: &[u32], new: &[u32], names: usize) -> Self {
        let words = old.len().div_ceil(64);
        let places = places_of(old, new, names, words);
        let mut rows = Vec::with_capacity(words * new.len());
        let mut row = vec![u64::MAX; words];
        let mut equal = vec![0; words];
        for &unit in new {
            match &places[unit as usize] {
                Places::Few(few) if few.is_empty() => {}
                Places::Few(few) => {
                    few.iter().for_each(|&place| set(&mut equal, place));
                    lengthen(&mut row, &equal);
                    few.iter().for_each(|place| equal[place / 64] = 0);
                }
                Places::Many(bits) => lengthen(&mut row, bits),
            }
            rows.extend_from_slice(&row);
        }
        Self { words, rows }
    }

    fn is_set(&self, row: usize, column: usize) -> bool {
        self.rows[row * self.words + column / 64] >> (column % 64) & 1 == 1
    }

    /// Follow a longest common subsequence from its end.
    fn hunks(&self, old: usize, new: usize) -> Vec<Hunk> {
        let (mut column, mut row) = (old, new);
        let mut hunks = Vec::new();
        let mut end = (old, new);
        let mut close = |start: (usize, usize), end: (usize, usize)| {
            if start != end {
                hunks.push(Hunk {
                    old: start.0..end.0,
                    new: start.1..end.1,
                });
            }
        };
        while column > 0 && row > 0 {
            if self.is_set(row - 1, column - 1) {
                column -= 1;
            } else if row > 1 && !self.is_set(row - 2, column - 1) {
                row -= 1;
            } else {
                close((column, row), end);
                column -= 1;
                row -= 1;
                end = (column, row);
            }
        }
        close((0, 0), end);
        hunks.reverse();
        hunks
    }
}

/// The next row, for a new unit that the old units of `equal` are equal to.
fn lengthen(row: &mut [u64], equal: &[u64]) {
    let mut carry = false;
    for (bits, equal) in row.iter_mut().zip(equal) {
        let (sum, over) = bits.overflowing_add(*bits & equal);
        let (sum, over_again) = sum.overflowing_add(u64::from(carry));
        carry = over | over_again;
        *bits = sum | (*bits & !equal);
    }
}

fn set(bits: &mut [u64], place: usize) {
    bits[place / 64] |= 1 << (place % 64);
}

/// Where a unit stands in `old`: a list as long as that is shorter than a row of bits.
#[derive(Clone)]
enum Places {
    Few(Vec<usize>),
    Many(Vec<u64>),
}

/// The places of each unit; none of those that `new` has not.
fn places_of(old: &[u32], new: &[u32], names: usize, words: usize) -> Vec<Places> {
    let mut is_new = vec![false; names];
    for &unit in new {
        is_new[unit as usize] = true;
    }
    let mut places = vec![Places::Few(Vec::new()); names];
    for (index, &unit) in old.iter().enumerate() {
        if !is_new[unit as usize] {
            continue;
        }
        let of_unit = &mut places[unit as usize];
        match of_unit {
            Places::Few(few) if few.len() < words => few.push(index),
            Places::Few(few) => {
                let mut bits = vec![0; words];
                few.iter().for_each(|&place| set(&mut bits, place));
                set(&mut bits, index);
                *of_unit = Places::Many(bits);
            }
            Places::Many(bits) => set(bits, index),
        }
    }
    places
}

/// Myers' walk along a shortest script, divided at the middle of its path.
///
/// A division halves the number of differences, so the recursion is as deep as its logarithm.
struct Walk<'a> {
    old: &'a [u32],
    new: &'a [u32],
    /// Farthest old position reached on each diagonal (old minus new), from the front and from the
    /// back.
    forward: Diagonals,
    backward: Diagonals,
    steps_left: u64,
    hunks: Vec<Hunk>,
}

/// A path that meets no difference: from the first point to the second.
struct Snake {
    start: (usize, usize),
    end: (usize, usize),
}

const UNREACHED: i32 = -1;

struct Diagonals {
    reached: Vec<i32>,
    zero: i32,
}

impl Diagonals {
    fn new(old: usize, new: usize) -> Self {
        Self {
            reached: vec![UNREACHED; old + new + 3],
            zero: new as i32 + 1,
        }
    }

    /// Forget what was reached on the diagonals that a search of this size can visit.
    fn clear(&mut self, old: i32, new: i32) {
        let from = (self.zero - new - 1) as usize;
        let to = (self.zero + old + 1) as usize;
        self.reached[from..=to].fill(UNREACHED);
    }

    fn at(&self, diagonal: i32) -> i32 {
        self.reached[(self.zero + diagonal) as usize]
    }

    fn set(&mut self, diagonal: i32, position: i32) {
        self.reached[(self.zero + diagonal) as usize] = position;
    }

    /// Whether a path on `diagonal` has come to or past `position`, which is counted from the other
    /// end.
    fn meets(&self, diagonal: i32, position: i32, old: i32) -> bool {
        let met = self.at(diagonal);
        met != UNREACHED && met + position >= old
    }

    /// The farthest point of `diagonal` that one more difference leads to inside the box, if any.
    fn start(&self, differences: i32, diagonal: i32, old: i32, new: i32) -> i32 {
        if differences == 0 {
            return 0;
        }
        let inserted = self.at(diagonal + 1);
        let deleted = self.at(diagonal - 1) + 1;
        let inserted = if inserted - diagonal <= new {
            inserted
        } else {
            UNREACHED
        };
        let deleted = if deleted > 0 && deleted <= old {
            deleted
        } else {
            UNREACHED
        };
        inserted.max(deleted)
    }
}

impl<'a> Walk<'a> {
    fn new(old: &'a [u32], new: &'a [u32], steps: u64) -> Self {
        Self {
            old,
            new,
            forward: Diagonals::new(old.len(), new.len()),
            backward: Diagonals::new(old.len(), new.len()),
            steps_left: steps,
            hunks: Vec::new(),
        }
    }

    /// Whether the script was found within the allowed steps.
    fn run(&mut self) -> bool {
        self.divide(0..self.old.len(), 0..self.new.len()).is_some()
    }

    fn divide(&mut self, mut old: Range<usize>, mut new: Range<usize>) -> Option<()> {
        while !old.is_empty() && !new.is_empty() && self.old[old.start] == self.new[new.start] {
            old.start += 1;
            new.start += 1;
            self.spend(1)?;
        }
        while !old.is_empty() && !new.is_empty() && self.old[old.end - 1] == self.new[new.end - 1] {
            old.end -= 1;
            new.end -= 1;
            self.spend(1)?;
        }
        if old.is_empty() || new.is_empty() {
            self.push(old, new);
            return Some(());
        }
        let snake = self.middle(&old, &new)?;
        self.divide(
            old.start..old.start + snake.start.0,
            new.start..new.start + snake.start.1,
        )?;
        self.divide(
            old.start + snake.end.0..old.end,
            new.start + snake.end.1..new.end,
        )
    }

    fn spend(&mut self, steps: u64) -> Option<()> {
        self.steps_left = self.steps_left.checked_sub(steps)?;
        Some(())
    }

    fn push(&mut self, old: Range<usize>, new: Range<usize>) {
        if old.is_empty() && new.is_empty() {
            return;
        }
        match self.hunks.last_mut() {
            Some(last) if last.old.end == old.start && last.new.end == new.start => {
                last.old.end = old.end;
                last.new.end = new.end;
            }
            _ => self.hunks.push(Hunk { old, new }),
        }
    }

    /// The snake in the middle of a shortest path through the box.
    ///
    /// Both ranges hold a unit and differ at both ends: two differences at least are ahead, so each
    /// side of the snake gets fewer than all of them.
    fn middle(&mut self, old: &Range<usize>, new: &Range<usize>) -> Option<Snake> {
        let (old_len, new_len) = (old.len() as i32, new.len() as i32);
        let delta = old_len - new_len;
        let is_odd = delta & 1 != 0;
        let old_units = &self.old[old.clone()];
        let new_units = &self.new[new.clone()];
        self.forward.clear(old_len, new_len);
        self.backward.clear(old_len, new_len);
        for differences in 0..=(old_len + new_len + 1) / 2 {
            // Farther diagonals lie outside the box, or have been followed to its edge.
            let low = -differences + 2 * (differences - new_len).max(0);
            let high = differences - 2 * (differences - old_len).max(0);
            let mut steps = (high - low + 2) as u64;
            for diagonal in (low..=high).step_by(2) {
                let start = self.forward.start(differences, diagonal, old_len, new_len);
                let mut end = start;
                if start != UNREACHED {
                    let old_rest = &old_units[start as usize..];
                    let new_rest = &new_units[(start - diagonal) as usize..];
                    let pairs = old_rest.iter().zip(new_rest);
                    end += pairs.take_while(|(a, b)| a == b).count() as i32;
                }
                steps += (end - start) as u64;
                self.forward.set(diagonal, end);
                let opposite = delta - diagonal;
                if is_odd
                    && opposite.abs() < differences
                    && end != UNREACHED
                    && self.backward.meets(opposite, end, old_len)
                {
                    return Some(Snake {
                        start: (start as usize, (start - diagonal) as usize),
                        end: (end as usize, (end - diagonal) as usize),
                    });
                }
            }
            for diagonal in (low..=high).step_by(2) {
                let start = self.backward.start(differences, diagonal, old_len, new_len);
                let mut end = start;
                if start != UNREACHED {
                    let old_rest = &old_units[..(old_len - start) as usize];
                    let new_rest = &new_units[..(new_len - start + diagonal) as usize];
                    let pairs = old_rest.iter().rev().zip(new_rest.iter().rev());
                    end += pairs.take_while(|(a, b)| a == b).count() as i32;
                }
                steps += (end - start) as u64;
                self.backward.set(diagonal, end);
                let opposite = delta - diagonal;
                if !is_odd
                    && opposite.abs() <= differences
                    && end != UNREACHED
                    && self.forward.meets(opposite, end, old_len)
                {
                    let forward = |position: i32| {
                        (
                            (old_len - position) as usize,
                            (new_len - position + diagonal) as usize,
                        )
                    };
                    return Some(Snake {
                        start: forward(end),
                        end: forward(start),
                    });
                }
            }
            self.spend(steps)?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(old: &str, new: &str) -> Vec<Hunk> {
        let hunks = script(old, new, &mut Budget::new(DEFAULT_WORK));
        check(old, new, &hunks);
        hunks
    }

    /// The script is ordered, on cluster boundaries, and turns the one text into the other.
    fn check(old: &str, new: &str, hunks: &[Hunk]) {
        let mut rebuilt = String::new();
        let mut old_at = 0;
        let mut new_at = 0;
        for (index, hunk) in hunks.iter().enumerate() {
            assert!(hunk.old.start > old_at || index == 0);
            rebuilt.push_str(&old[old_at..hunk.old.start]);
            assert_eq!(hunk.old.start - old_at, hunk.new.start - new_at);
            rebuilt.push_str(&new[hunk.new.clone()]);
            for at in [hunk.old.start, hunk.old.end] {
                assert!(is_cluster_bound(old, at));
            }
            for at in [hunk.new.start, hunk.new.end] {
                assert!(is_cluster_bound(new, at));
            }
            (old_at, new_at) = (hunk.old.end, hunk.new.end);
        }
        rebuilt.push_str(&old[old_at..]);
        assert_eq!(rebuilt, new);
    }

    fn is_cluster_bound(text: &str, at: usize) -> bool {
        let mut cursor = unicode_segmentation::GraphemeCursor::new(at, text.len(), true);
        text.is_char_boundary(at) && cursor.is_boundary(text, 0) == Ok(true)
    }

    fn edits(hunks: &[Hunk]) -> usize {
        hunks
            .iter()
            .map(|hunk| hunk.old.len() + hunk.new.len())
            .sum()
    }

    /// Deterministic pseudo-random numbers, so that a failure comes again.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % bound
        }

        fn word(&mut self, letters: &[char], length: u64) -> String {
            (0..self.below(length + 1))
                .map(|_| letters[self.below(letters.len() as u64) as usize])
                .collect()
        }
    }

    fn least_edits(old: &str, new: &str) -> usize {
        let (old, new): (Vec<_>, Vec<_>) = (old.bytes().collect(), new.bytes().collect());
        let mut row: Vec<usize> = (0..=new.len()).collect();
        for (i, a) in old.iter().enumerate() {
            let mut diagonal = row[0];
            row[0] = i + 1;
            for (j, b) in new.iter().enumerate() {
                let next = if a == b {
                    diagonal
                } else {
                    1 + row[j].min(row[j + 1])
                };
                diagonal = std::mem::replace(&mut row[j + 1], next);
            }
        }
        row[new.len()]
    }

    #[test]
    fn scripts_of_short_texts_are_shortest() {
        let mut numbers = Numbers(7);
        for _ in 0..20_000 {
            let old = numbers.word(&['a', 'b', 'c'], 14);
            let new = numbers.word(&['a', 'b', 'c'], 14);
            assert_eq!(
                edits(&of(&old, &new)),
                least_edits(&old, &new),
                "{old} {new}"
            );
        }
    }

    #[test]
    fn scripts_keep_clusters_whole() {
        let parts = [
            'a',
            '\u{301}',
            '\u{200d}',
            '\u{1f468}',
            '\u{1f469}',
            '\u{1f1e6}',
            '\u{1f1e7}',
            '\r',
            '\n',
            '\u{0915}',
            '\u{094d}',
            '\u{1f3fd}',
            '\u{600}',
            ' ',
            '語',
        ];
        let mut numbers = Numbers(11);
        for work in [DEFAULT_WORK, 60, 0] {
            for _ in 0..20_000 {
                let old = numbers.word(&parts, 12);
                let new = numbers.word(&parts, 12);
                let hunks = script(&old, &new, &mut Budget::new(work));
                check(&old, &new, &hunks);
            }
        }
    }

    #[test]
    fn walk_and_table_agree_on_the_length() {
        let mut numbers = Numbers(3);
        for _ in 0..300 {
            let (length, letters) = (numbers.below(300), 1 + numbers.below(80));
            let (old, new): (Vec<u32>, Vec<u32>) = (0..length)
                .map(|_| (numbers.below(letters) as u32, numbers.below(letters) as u32))
                .unzip();
            let new = &new[..numbers.below(length + 1) as usize];
            let mut walk = Walk::new(&old, new, u64::MAX);
            assert!(walk.run());
            let by_table = Table::new(&old, new, letters as usize).hunks(old.len(), new.len());
            for hunks in [&walk.hunks, &by_table] {
                let mut rebuilt = Vec::new();
                let mut at = 0;
                for hunk in hunks {
                    rebuilt.extend_from_slice(&old[at..hunk.old.start]);
                    rebuilt.extend_from_slice(&new[hunk.new.clone()]);
                    at = hunk.old.end;
                }
                rebuilt.extend_from_slice(&old[at..]);
                assert_eq!(rebuilt, new);
            }
            assert_eq!(edits(&walk.hunks), edits(&by_table));
        }
    }

    #[test]
    fn the_oldest_example() {
        assert_eq!(edits(&of("red apple", "green apple")), 4);
        assert_eq!(
            of("", "a"),
            [Hunk {
                old: 0..0,
                new: 0..1
            }]
        );
        assert_eq!(
            of("a", ""),
            [Hunk {
                old: 0..1,
                new: 0..0
            }]
        );
        assert_eq!(of("a", "a"), []);
    }

    #[test]
    fn coarser_units_follow_when_finer_ones_are_too_dear() {
        let text = |word: &str, from: usize| -> String {
            (0..20_000)
                .map(|n| match n % 100 {
                    0 if n >= from => format!("{word}{n} "),
                    9 => "\n".to_owned(),
                    _ => format!("same{n} "),
                })
                .collect()
        };
        let rewritten: String = (0..20_000).map(|n| format!("other{n} ")).collect();

        let few_words = of(&text("old", 0), &text("new", 0));
        let whole = of(&text("old", 0), &rewritten);
        let one_word = of(&text("old", 19_900), &text("new", 19_900));

        // Words, not letters: old and new have no letter of their names in common place.
        assert_eq!(few_words.len(), 200);
        assert_eq!(whole.len(), 1);
        assert_eq!(one_word.len(), 1);
    }

    #[test]
    fn a_change_has_a_bounded_number_of_places() {
        let old: String = (0..3_000).map(|n| format!("old{n} same{n} ")).collect();
        let new: String = (0..3_000).map(|n| format!("new{n} same{n} ")).collect();
        assert_eq!(of(&old, &new).len(), 1);
    }

    #[test]
    fn no_search_takes_more_than_it_may() {
        let old = "ab".repeat(50_000);
        let new = "ba".repeat(30_000) + &"abb".repeat(20_000);
        for work in [0, 1, 1_000, 1_000_000] {
            let mut budget = Budget::new(work);
            check(&old, &new, &script(&old, &new, &mut budget));
            assert!(budget.total >= work * (TOTAL_FACTOR - 3));
        }
    }

    #[test]
    fn texts_whose_clusters_depend_on_all_before_are_read_once() {
        // Whether a place divides a row of flags depends on how many there are before it.
        let flags = "\u{1f1e9}".repeat(60_001);
        let old = format!("x{flags}y");
        let new = format!("{flags}\u{1f1e9}\u{301}y");
        let hunks = script(&old, &new, &mut Budget::new(DEFAULT_WORK));
        assert!(!hunks.is_empty());
    }

    #[test]
    fn a_spent_total_still_gives_a_script() {
        let mut budget = Budget::new(100);
        for _ in 0..1_000 {
            let (old, new) = ("some words here", "other words there");
            check(old, new, &script(old, new, &mut budget));
        }
        assert!(budget.total < 100);
    }

    #[test]
    fn offsets_are_mapped_back_through_a_script() {
        let hunks = [
            Hunk {
                old: 2..4,
                new: 2..5,
            },
            Hunk {
                old: 6..6,
                new: 7..9,
            },
            Hunk {
                old: 8..9,
                new: 11..11,
            },
        ];
        let mapped: Vec<_> = (0..=13).map(|at| offset_before(&hunks, at)).collect();
        assert_eq!(
            mapped,
            [
                Some(0),
                Some(1),
                Some(2),
                None,
                None,
                Some(4),
                Some(5),
                Some(6),
                None,
                Some(6),
                Some(7),
                Some(9),
                Some(10),
                Some(11),
            ]
        );
    }
}
