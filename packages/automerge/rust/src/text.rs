//! The edit script between two texts, at a bounded price.
//!
//! Units, finest first: extended grapheme clusters, words, lines, the whole. A script over one kind of unit is
//! exact (Myers, in linear space). Every step of the search is counted; a search that runs out of steps, or
//! finds more places than a change should have, is given up for the next coarser unit. The whole is always
//! possible, so a script always comes back. What is common at both ends costs nothing but its comparison.
//!
//! Searches of libraries were not taken: they bound no worst case, and recurse as deep as the input is long.

use std::collections::HashMap;
use std::ops::Range;

use unicode_segmentation::{GraphemeCursor, UnicodeSegmentation};

/// Steps of one search. Two unrelated texts of 2,000 clusters each stay just below.
pub const DEFAULT_WORK: u64 = 6_000_000;
/// All scripts of one join together may take this many times the steps of one.
const TOTAL_FACTOR: u64 = 16;
/// Places of one script. Each becomes a few operations, which cost far more than a step of the search.
const MAX_HUNKS: usize = 1_024;

/// `old` is replaced by `new`: byte ranges on cluster boundaries, ascending, never adjacent, never both empty.
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
    let start = common_prefix(old, new);
    let end = common_suffix(&old[start..], &new[start..], old, new);
    let old_middle = &old[start..old.len() - end];
    let new_middle = &new[start..new.len() - end];
    let mut hunks = middle_script(old_middle, new_middle, budget);
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

fn middle_script(old: &str, new: &str, budget: &mut Budget) -> Vec<Hunk> {
    if !old.is_empty() && !new.is_empty() {
        for bounds in [cluster_bounds, word_bounds, line_bounds] {
            if let Some(hunks) = unit_script(old, new, bounds, budget) {
                return hunks;
            }
        }
    }
    vec![Hunk {
        old: 0..old.len(),
        new: 0..new.len(),
    }]
}

fn common_prefix(old: &str, new: &str) -> usize {
    let mut at = old
        .bytes()
        .zip(new.bytes())
        .take_while(|(a, b)| a == b)
        .count();
    while !(is_cluster_bound(old, at) && is_cluster_bound(new, at)) {
        at -= 1;
    }
    at
}

/// Of the remainders after the prefix; boundaries are those of the whole texts.
fn common_suffix(old_rest: &str, new_rest: &str, old: &str, new: &str) -> usize {
    let mut length = old_rest
        .bytes()
        .rev()
        .zip(new_rest.bytes().rev())
        .take_while(|(a, b)| a == b)
        .count();
    while !(is_cluster_bound(old, old.len() - length)
        && is_cluster_bound(new, new.len() - length))
    {
        length -= 1;
    }
    length
}

fn is_cluster_bound(text: &str, at: usize) -> bool {
    text.is_char_boundary(at)
        && GraphemeCursor::new(at, text.len(), true)
            .is_boundary(text, 0)
            .unwrap_or(false)
}

/// Ends of the units of `text`, ascending, the last being its length.
type Bounds = fn(&str) -> Vec<usize>;

fn cluster_bounds(text: &str) -> Vec<usize> {
    if text.is_ascii() && !text.contains('\r') {
        return (1..=text.len()).collect();
    }
    text.grapheme_indices(true)
        .map(|(at, cluster)| at + cluster.len())
        .collect()
}

/// Word boundaries of Unicode, where they are cluster boundaries too.
fn word_bounds(text: &str) -> Vec<usize> {
    let words = text
        .split_word_bound_indices()
        .map(|(at, word)| at + word.len());
    on_clusters(words, text)
}

fn line_bounds(text: &str) -> Vec<usize> {
    let lines = text.split_inclusive('\n').scan(0, |end, line| {
        *end += line.len();
        Some(*end)
    });
    on_clusters(lines, text)
}

fn on_clusters(bounds: impl Iterator<Item = usize>, text: &str) -> Vec<usize> {
    bounds.filter(|&at| is_cluster_bound(text, at)).collect()
}

fn unit_script(old: &str, new: &str, bounds: Bounds, budget: &mut Budget) -> Option<Vec<Hunk>> {
    let allowed = budget.search.min(budget.total);
    let old_bounds = bounds(old);
    let new_bounds = bounds(new);
    // Reading the units is part of the price.
    let reading = (old_bounds.len() + new_bounds.len()) as u64;
    if reading > allowed {
        return None;
    }
    let mut names = HashMap::new();
    let old_units = name_units(old, &old_bounds, &mut names);
    let new_units = name_units(new, &new_bounds, &mut names);
    // A search for n differences takes about n²/4 steps; units that one side alone has are differences.
    let surplus = unmatched_units(&old_units, &new_units, names.len()) as u64;
    if (surplus * surplus / 4).saturating_add(reading) > allowed {
        budget.total -= reading;
        return None;
    }
    let mut search = Search::new(&old_units, &new_units, allowed - reading);
    let found = search.run();
    budget.total -= allowed - search.steps_left;
    if !found || search.hunks.len() > MAX_HUNKS {
        return None;
    }
    let start_of = |bounds: &[usize], unit: usize| if unit == 0 { 0 } else { bounds[unit - 1] };
    let hunks = search.hunks.iter().map(|hunk| Hunk {
        old: start_of(&old_bounds, hunk.old.start)..start_of(&old_bounds, hunk.old.end),
        new: start_of(&new_bounds, hunk.new.start)..start_of(&new_bounds, hunk.new.end),
    });
    Some(hunks.collect())
}

fn name_units<'a>(
    text: &'a str,
    bounds: &[usize],
    names: &mut HashMap<&'a str, u32>,
) -> Vec<u32> {
    let mut start = 0;
    let mut units = Vec::with_capacity(bounds.len());
    for &end in bounds {
        let next = names.len() as u32;
        units.push(*names.entry(&text[start..end]).or_insert(next));
        start = end;
    }
    units
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

/// Myers' search for the shortest script, dividing at the middle of an optimal path.
///
/// A division halves the number of differences, so the recursion is as deep as its logarithm.
struct Search<'a> {
    old: &'a [u32],
    new: &'a [u32],
    /// Farthest old position reached on each diagonal (old minus new), from the front and from the back.
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

const UNREACHED: i64 = -1;

struct Diagonals {
    reached: Vec<i64>,
    zero: i64,
}

impl Diagonals {
    fn new(old: usize, new: usize) -> Self {
        Self {
            reached: vec![UNREACHED; old + new + 3],
            zero: new as i64 + 1,
        }
    }

    /// Forget what was reached on the diagonals that a search of this size can visit.
    fn clear(&mut self, old: i64, new: i64) {
        let from = (self.zero - new - 1) as usize;
        let to = (self.zero + old + 1) as usize;
        self.reached[from..=to].fill(UNREACHED);
    }

    fn at(&self, diagonal: i64) -> i64 {
        self.reached[(self.zero + diagonal) as usize]
    }

    fn set(&mut self, diagonal: i64, position: i64) {
        self.reached[(self.zero + diagonal) as usize] = position;
    }

    /// Whether a path on `diagonal` has come to or past `position`, which is counted from the other end.
    fn meets(&self, diagonal: i64, position: i64, old: i64) -> bool {
        let met = self.at(diagonal);
        met != UNREACHED && met + position >= old
    }

    /// The farthest point of `diagonal` that one more difference leads to, inside the box, if any.
    fn start(&self, differences: i64, diagonal: i64, old: i64, new: i64) -> Option<i64> {
        if differences == 0 {
            return Some(0);
        }
        let inserted = self.at(diagonal + 1);
        let deleted = self.at(diagonal - 1) + 1;
        let inserted = (inserted >= 0 && inserted - diagonal <= new).then_some(inserted);
        let deleted = (deleted > 0 && deleted <= old).then_some(deleted);
        inserted.max(deleted)
    }
}

impl<'a> Search<'a> {
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
        while !old.is_empty() && !new.is_empty() && self.old[old.end - 1] == self.new[new.end - 1]
        {
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
    /// Both ranges hold a unit and differ at both ends: two differences at least are ahead, so each side of
    /// the snake gets fewer than all of them.
    fn middle(&mut self, old: &Range<usize>, new: &Range<usize>) -> Option<Snake> {
        let (old_len, new_len) = (old.len() as i64, new.len() as i64);
        let delta = old_len - new_len;
        let is_odd = delta & 1 != 0;
        self.forward.clear(old_len, new_len);
        self.backward.clear(old_len, new_len);
        for differences in 0..=(old_len + new_len + 1) / 2 {
            // Farther diagonals lie outside the box, or have been followed to its edge.
            let low = -differences + 2 * (differences - new_len).max(0);
            let high = differences - 2 * (differences - old_len).max(0);
            self.spend((high - low + 2) as u64)?;
            for diagonal in (low..=high).step_by(2) {
                let Some(start) = self.forward.start(differences, diagonal, old_len, new_len)
                else {
                    self.forward.set(diagonal, UNREACHED);
                    continue;
                };
                let mut end = start;
                while end < old_len
                    && end - diagonal < new_len
                    && self.old[old.start + end as usize]
                        == self.new[new.start + (end - diagonal) as usize]
                {
                    end += 1;
                }
                self.spend((end - start) as u64)?;
                self.forward.set(diagonal, end);
                let opposite = delta - diagonal;
                if is_odd
                    && opposite.abs() < differences
                    && self.backward.meets(opposite, end, old_len)
                {
                    return Some(Snake {
                        start: (start as usize, (start - diagonal) as usize),
                        end: (end as usize, (end - diagonal) as usize),
                    });
                }
            }
            for diagonal in (low..=high).step_by(2) {
                let Some(start) = self.backward.start(differences, diagonal, old_len, new_len)
                else {
                    self.backward.set(diagonal, UNREACHED);
                    continue;
                };
                let mut end = start;
                while end < old_len
                    && end - diagonal < new_len
                    && self.old[old.end - 1 - end as usize]
                        == self.new[new.end - 1 - (end - diagonal) as usize]
                {
                    end += 1;
                }
                self.spend((end - start) as u64)?;
                self.backward.set(diagonal, end);
                let opposite = delta - diagonal;
                if !is_odd
                    && opposite.abs() <= differences
                    && self.forward.meets(opposite, end, old_len)
                {
                    let forward = |position: i64| {
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
            assert_eq!(edits(&of(&old, &new)), least_edits(&old, &new), "{old} {new}");
        }
    }

    #[test]
    fn scripts_keep_clusters_whole() {
        let parts = [
            'a', '\u{301}', '\u{200d}', '\u{1f468}', '\u{1f469}', '\u{1f1e6}', '\u{1f1e7}', '\r', '\n',
            '\u{0915}', '\u{094d}', '\u{1f3fd}', '\u{600}', ' ', '語',
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
    fn the_oldest_example() {
        assert_eq!(
            of("red apple", "green apple"),
            [
                Hunk { old: 0..0, new: 0..1 },
                Hunk { old: 2..3, new: 3..5 },
            ]
        );
        assert_eq!(of("", "a"), [Hunk { old: 0..0, new: 0..1 }]);
        assert_eq!(of("a", ""), [Hunk { old: 0..1, new: 0..0 }]);
        assert_eq!(of("a", "a"), []);
    }

    #[test]
    fn coarser_units_follow_when_the_steps_run_out() {
        let old: String = (0..3_000).map(|n| format!("old{n} same{n} ")).collect();
        let new: String = (0..3_000).map(|n| format!("new{n} same{n} ")).collect();
        let rewritten: String = (0..9_000).map(|n| format!("other{n} ")).collect();

        let by_words = of(&old, &old.replace("same7 ", "other "));
        let whole = of(&old, &rewritten);
        let too_many_places = of(&old, &new);

        assert_eq!(by_words.len(), 1 + 1);
        assert_eq!(whole.len(), 1);
        assert_eq!(too_many_places.len(), 1);
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
            Hunk { old: 2..4, new: 2..5 },
            Hunk { old: 6..6, new: 7..9 },
            Hunk { old: 8..9, new: 11..11 },
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
