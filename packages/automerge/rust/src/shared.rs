//! Parts that are the same in all versions of a value: no merge can touch them.

use std::collections::BTreeMap;

use crate::fault::Fault;
use crate::json::Json;

/// What was taken out of maps and lists that stand at the same place in every version.
///
/// A common member of maps is taken out. Common neighbours in lists give way to one null, the same
/// in each version: elements are edited in place, and removed and appended at the end alone, so what
/// no version changes stays where it is.
#[derive(Debug, Default)]
pub enum Shared {
    #[default]
    Nothing,
    Map {
        members: BTreeMap<String, Json>,
        within: Vec<(String, Shared)>,
    },
    List {
        /// Places of the nulls, ascending, and the elements that each stands for.
        runs: Vec<(usize, Vec<Json>)>,
        within: Vec<(usize, Shared)>,
    },
}

impl Shared {
    /// Take the common parts out of `values`, the first of which is the base's.
    pub fn take(values: Vec<&mut Json>) -> Self {
        match values.first() {
            Some(Json::Map(_)) => {
                let maps = values.into_iter().map(|value| match value {
                    Json::Map(members) => Some(members),
                    _ => None,
                });
                maps.collect::<Option<_>>()
                    .map_or(Self::Nothing, Self::take_members)
            }
            Some(Json::List(_)) => {
                let lists = values.into_iter().map(|value| match value {
                    Json::List(elements) => Some(elements),
                    _ => None,
                });
                lists
                    .collect::<Option<_>>()
                    .map_or(Self::Nothing, Self::take_elements)
            }
            _ => Self::Nothing,
        }
    }

    fn take_members(mut maps: Vec<&mut BTreeMap<String, Json>>) -> Self {
        let mut members = BTreeMap::new();
        let mut within = Vec::new();
        let names: Vec<String> = maps[0].keys().cloned().collect();
        for name in names {
            let first = maps[0].get(&name);
            if maps.iter().all(|map| map.get(&name) == first) {
                // The base's comes last, and stays.
                for map in maps.iter_mut().rev() {
                    if let Some(value) = map.remove(&name) {
                        members.insert(name.clone(), value);
                    }
                }
                continue;
            }
            let inner: Option<Vec<&mut Json>> =
                maps.iter_mut().map(|map| map.get_mut(&name)).collect();
            match inner.map(Self::take) {
                None | Some(Self::Nothing) => {}
                Some(shared) => within.push((name, shared)),
            }
        }
        Self::Map { members, within }
    }

    fn take_elements(mut lists: Vec<&mut Vec<Json>>) -> Self {
        let length = lists.iter().map(|list| list.len()).min().unwrap_or(0);
        let is_common: Vec<bool> = (0..length)
            .map(|index| lists.iter().all(|list| list[index] == lists[0][index]))
            .collect();
        let mut runs = Vec::new();
        for list in lists.iter_mut().rev() {
            (**list, runs) = shortened(std::mem::take(*list), &is_common);
        }
        let mut within = Vec::new();
        let length = lists.iter().map(|list| list.len()).min().unwrap_or(0);
        for place in 0..length {
            let inner = lists.iter_mut().map(|list| &mut list[place]).collect();
            match Self::take(inner) {
                Self::Nothing => {}
                shared => within.push((place, shared)),
            }
        }
        Self::List { runs, within }
    }

    /// Put back into `merged` what was taken.
    pub fn put_back(self, merged: &mut Json) -> Result<(), Fault> {
        match (self, merged) {
            (Self::Nothing, _) => {}
            (Self::Map { members, within }, Json::Map(merged)) => {
                for (name, shared) in within {
                    shared.put_back(merged.get_mut(&name).ok_or_else(lost)?)?;
                }
                merged.extend(members);
            }
            (Self::List { runs, within }, Json::List(merged)) => {
                for (place, shared) in within {
                    shared.put_back(merged.get_mut(place).ok_or_else(lost)?)?;
                }
                let mut taken = std::mem::take(merged).into_iter();
                let mut at = 0;
                for (place, run) in runs {
                    merged.extend(taken.by_ref().take(place - at));
                    taken.next().ok_or_else(lost)?;
                    merged.extend(run);
                    at = place + 1;
                }
                merged.extend(taken);
            }
            _ => return Err(lost()),
        }
        Ok(())
    }
}

/// `list` with nulls for its common runs, and those runs by the places of the nulls.
fn shortened(list: Vec<Json>, is_common: &[bool]) -> (Vec<Json>, Vec<(usize, Vec<Json>)>) {
    let mut short = Vec::new();
    let mut runs: Vec<(usize, Vec<Json>)> = Vec::new();
    let mut is_in_run = false;
    for (index, element) in list.into_iter().enumerate() {
        if !is_common.get(index).copied().unwrap_or(false) {
            short.push(element);
            is_in_run = false;
            continue;
        }
        if !is_in_run {
            runs.push((short.len(), Vec::new()));
            short.push(Json::Null);
            is_in_run = true;
        }
        if let Some((_, run)) = runs.last_mut() {
            run.push(element);
        }
    }
    (short, runs)
}

fn lost() -> Fault {
    Fault::Defect {
        problem: "a merge lost what no version had changed".to_owned(),
    }
}
