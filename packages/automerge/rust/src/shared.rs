//! Members that are the same in all versions of a value: no merge can touch them.

use std::collections::BTreeMap;

use crate::json::Json;

/// What was taken out of maps that stand at the same place in every version.
///
/// Lists are left whole, since their elements are addressed by position.
#[derive(Debug, Default)]
pub struct Shared {
    members: BTreeMap<String, Json>,
    within: BTreeMap<String, Shared>,
}

impl Shared {
    /// Take the common members out of `values`, the first of which is the base's.
    pub fn take(values: &mut [Json]) -> Self {
        let maps: Option<Vec<_>> = values
            .iter_mut()
            .map(|value| match value {
                Json::Map(members) => Some(members),
                _ => None,
            })
            .collect();
        maps.map(Self::take_members).unwrap_or_default()
    }

    fn take_members(mut maps: Vec<&mut BTreeMap<String, Json>>) -> Self {
        let mut shared = Self::default();
        let names: Vec<String> = maps
            .first()
            .map(|map| map.keys().cloned().collect())
            .unwrap_or_default();
        for name in names {
            let first = maps[0].get(&name);
            if maps.iter().all(|map| map.get(&name) == first) {
                for map in maps.iter_mut().rev() {
                    if let Some(value) = map.remove(&name) {
                        shared.members.insert(name.clone(), value);
                    }
                }
                continue;
            }
            let inner: Option<Vec<_>> = maps
                .iter_mut()
                .map(|map| match map.get_mut(&name) {
                    Some(Json::Map(members)) => Some(members),
                    _ => None,
                })
                .collect();
            if let Some(inner) = inner {
                shared.within.insert(name, Self::take_members(inner));
            }
        }
        shared
    }

    /// Put back into `merged` what was taken.
    pub fn put_back(self, merged: &mut Json) {
        if let Json::Map(members) = merged {
            members.extend(self.members);
            for (name, shared) in self.within {
                if let Some(member) = members.get_mut(&name) {
                    shared.put_back(member);
                }
            }
        }
    }
}
