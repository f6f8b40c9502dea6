//! Parses the output of `nft -j list ruleset` (libnftables-json(5)).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    ops::RangeInclusive,
};

use serde::Deserialize;
use serde_json::Value;

use super::{
    report::Published,
    rules::{Ports, Rule, Rules, Way},
};
use crate::nft::NftError;

/// All objects of a ruleset, without the elements of its named sets.
pub(super) struct Listing {
    objects: Vec<Value>,
}

/// A named set or map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SetName {
    kind: &'static str,
    table: Table,
    name: String,
}

/// The result of searching a listing.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) published: Published,
    /// Sets of ports whose elements must be listed first.
    pub(super) wanted: BTreeSet<SetName>,
    /// The families whose NAT tables contain iptables rules, which nft shows only in part.
    pub(super) with_iptables: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Table {
    family: String,
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Chain {
    table: Table,
    name: String,
}

impl Listing {
    pub(super) fn parse(text: &str) -> Result<Self, NftError> {
        #[derive(Deserialize)]
        struct Printed {
            nftables: Vec<Value>,
        }
        let printed: Printed = serde_json::from_str(text).map_err(not_understood)?;
        Ok(Self { objects: printed.nftables })
    }

    /// The objects of a kind with their tables, except those in Warren's own tables.
    fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = (Table, &'a Value)> {
        self.objects.iter().filter_map(move |object| {
            let object = object.get(kind)?;
            let text = |key: &str| Some(object.get(key)?.as_str()?.to_owned());
            let table = Table { family: text("family")?, name: text("table")? };
            (!table.name.starts_with("warren")).then_some((table, object))
        })
    }
}

/// Finds the ports that the rules publish. `sets` are the elements of the named sets that were listed so far.
pub(super) fn published(listing: &Listing, sets: &BTreeMap<SetName, Vec<Value>>) -> Found {
    let mut reading = Reading { listing, sets, found: Found::default() };
    let mut rules = Rules::new();
    for (table, chain) in listing.of_kind("chain") {
        let is = |key: &str, value: &str| chain.get(key).and_then(Value::as_str) == Some(value);
        // Packets from outside pass through these chains. Chains at `output` see only this host's own packets.
        let takes_in = is("type", "nat") && (is("hook", "prerouting") || is("hook", "ingress"));
        if let Some(name) = chain.get("name").and_then(Value::as_str)
            && takes_in
        {
            rules.first.insert(Chain { table, name: name.to_owned() });
        }
    }
    // A chain can jump only to chains of its own table, so the rules of other tables do not matter.
    let with_nat: BTreeSet<&Table> = rules.first.iter().map(|chain| &chain.table).collect();
    for (table, rule) in listing.of_kind("rule").filter(|(table, _)| with_nat.contains(table)) {
        let expressions = rule.get("expr").and_then(Value::as_array);
        if let (Some(name), Some(expressions)) = (rule.get("chain").and_then(Value::as_str), expressions) {
            let read = reading.rule(&table, expressions);
            let chain = Chain { table, name: name.to_owned() };
            rules.chains.entry(chain).or_insert_with(Vec::new).extend(read);
        }
    }
    reading.found.published = rules.published();
    reading.found
}

struct Reading<'a> {
    listing: &'a Listing,
    sets: &'a BTreeMap<SetName, Vec<Value>>,
    found: Found,
}

impl Reading<'_> {
    fn rule(&mut self, table: &Table, expressions: &[Value]) -> Vec<Rule<Chain>> {
        let mut picked = Ports::Any;
        let mut rules = Vec::new();
        let jump = |ports: Ports, verdict: &Value| {
            let target =
                ["jump", "goto"].iter().find_map(|word| verdict.get(word))?.get("target")?.as_str()?;
            Some(Rule { ports, way: Way::To(Chain { table: table.clone(), name: target.to_owned() }) })
        };
        for expression in expressions {
            if let Some(condition) = expression.get("match") {
                if let Some(ports) = self.matched(table, condition) {
                    picked = Ports::These(ports);
                }
            } else if let Some(map) = expression.get("vmap") {
                for (ports, verdict) in self.elements(table, map) {
                    // If the map's key has no port, the ports of earlier conditions of the rule apply.
                    rules.extend(jump(ports.unwrap_or_else(|| picked.clone()), &verdict));
                }
            } else if let Some(nat) = expression.get("dnat").or_else(|| expression.get("redirect")) {
                let maps = [nat.get("addr"), nat.get("port"), Some(nat)];
                let map = maps.into_iter().flatten().find_map(|value| value.get("map"));
                let ports: Vec<_> = map
                    .map(|map| self.elements(table, map).into_iter().filter_map(|(ports, _)| ports).collect())
                    .unwrap_or_default();
                let mapped = ports.into_iter().filter_map(|ports| match ports {
                    Ports::These(ports) => Some(ports),
                    Ports::Any => None,
                });
                let mapped: Vec<_> = mapped.flatten().collect();
                let ports = if mapped.is_empty() { picked.clone() } else { Ports::These(mapped) };
                rules.push(Rule { ports, way: Way::Elsewhere });
            } else if expression.get("xt").is_some() {
                self.found.with_iptables.insert(table.family.clone());
            } else {
                rules.extend(jump(picked.clone(), expression));
            }
        }
        rules
    }

    /// Returns the destination ports that a condition selects. `None` if it is no condition on ports, or they cannot be
    /// determined.
    fn matched(&mut self, table: &Table, condition: &Value) -> Option<Vec<RangeInclusive<u16>>> {
        let place = place_of_port(condition.get("left")?)?;
        let right = condition.get("right")?;
        let number = || port(right);
        match condition.get("op").and_then(Value::as_str)? {
            "==" | "in" => self.ports(table, right, place),
            ">=" => Some(vec![number()?..=u16::MAX]),
            ">" => Some(vec![number()?.checked_add(1)?..=u16::MAX]),
            "<=" => Some(vec![0..=number()?]),
            "<" => Some(vec![0..=number()?.checked_sub(1)?]),
            // `!=` is ignored, because it lists the ports that the rule does not select.
            _ => None,
        }
    }

    /// The values of a map, each with its ports if the map's key has ports.
    fn elements(&mut self, table: &Table, map: &Value) -> Vec<(Option<Ports>, Value)> {
        let place = map.get("key").and_then(place_of_port);
        let Some(data) = map.get("data") else { return Vec::new() };
        let elements = self.held(table, data).unwrap_or_default();
        let pairs = elements.iter().filter_map(|element| Some((element.get(0)?, element.get(1)?)));
        let mut read = Vec::new();
        for (key, value) in pairs {
            let ports = place
                .and_then(|place| self.ports(table, key, place))
                .map(Ports::These)
                .or(place.map(|_| Ports::Any));
            read.push((ports, value.clone()));
        }
        read
    }

    /// Returns the ports in a value. If the value has several fields, `place` is the position of the port among them.
    fn ports(&mut self, table: &Table, value: &Value, place: usize) -> Option<Vec<RangeInclusive<u16>>> {
        if let Some(elements) = self.held(table, value) {
            let mut ports = Vec::new();
            for element in &elements {
                ports.extend(self.ports(table, element, place)?);
            }
            return Some(ports);
        }
        if let Some(fields) = value.get("concat") {
            return self.ports(table, fields.get(place)?, 0);
        }
        if let Some(with_more) = value.get("elem") {
            // The element is an object with further properties, such as a timeout or a counter.
            return self.ports(table, with_more.get("val")?, place);
        }
        match value.get("range") {
            Some(range) => {
                // In a range of values with several fields, both ends have all fields.
                let end = |at: usize| {
                    let end = range.get(at)?;
                    port(end.get("concat").map_or(Some(end), |fields| fields.get(place))?)
                };
                Some(vec![end(0)?..=end(1)?])
            }
            None => port(value).map(|port| vec![port..=port]),
        }
    }

    /// Returns the elements of a set, which is either anonymous, in the rule itself, or has a name.
    fn held(&mut self, table: &Table, value: &Value) -> Option<Vec<Value>> {
        if let Some(elements) = value.get("set") {
            // nft may print a set with one element as that element instead of a list.
            return Some(elements.as_array().cloned().unwrap_or_else(|| vec![elements.clone()]));
        }
        let name = value.as_str()?.strip_prefix('@')?;
        let kind = ["set", "map"].into_iter().find(|kind| {
            let mut of_kind = self.listing.of_kind(kind);
            of_kind.any(|(of, set)| of == *table && set.get("name").and_then(Value::as_str) == Some(name))
        })?;
        let set = SetName { kind, table: table.clone(), name: name.to_owned() };
        let Some(elements) = self.sets.get(&set) else {
            // The caller lists the set's elements and then reads the rules again.
            self.found.wanted.insert(set);
            return Some(Vec::new());
        };
        Some(elements.clone())
    }
}

/// The position of a destination port among the fields that an expression reads, if there is one.
fn place_of_port(expression: &Value) -> Option<usize> {
    let is_port = |field: &Value| {
        field.get("payload").and_then(|payload| payload.get("field")).and_then(Value::as_str) == Some("dport")
    };
    match expression.get("concat").and_then(Value::as_array) {
        Some(fields) => fields.iter().position(is_port),
        None => is_port(expression).then_some(0),
    }
}

fn port(value: &Value) -> Option<u16> {
    let number = value.as_u64().and_then(|number| u16::try_from(number).ok());
    number.or_else(|| value.as_str()?.parse().ok())
}

impl SetName {
    pub(super) fn arguments(&self) -> [&str; 6] {
        ["-j", "list", self.kind, &self.table.family, &self.table.name, &self.name]
    }

    /// The elements of the set, from nft's output for [`Self::arguments`]. An empty set has none.
    ///
    /// # Errors
    /// When the output is not nft's JSON.
    pub(super) fn elements(&self, text: &str) -> Result<Vec<Value>, NftError> {
        let listing = Listing::parse(text)?;
        let elements =
            listing.of_kind(self.kind).next().and_then(|(_, set)| set.get("elem")?.as_array().cloned());
        Ok(elements.unwrap_or_default())
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, table: Table { family, name: table }, name } = self;
        write!(f, "the {kind} {family} {table} {name}")
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table: Table { family, name: table }, name } = self;
        write!(f, "the chain {family} {table} {name}")
    }
}

fn not_understood(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> NftError {
    NftError::Io(io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The ports that the rules of a chain publish, given as their expressions.
    fn found(rules: &[Value]) -> Found {
        published(&listing(rules), &BTreeMap::new())
    }

    fn listing(rules: &[Value]) -> Listing {
        let in_table = |name: &str| json!({ "family": "ip", "table": "nat", "name": name });
        let mut first = in_table("pre");
        (first["type"], first["hook"]) = ("nat".into(), "prerouting".into());
        let mut objects = vec![
            json!({ "metainfo": { "json_schema_version": 1 } }),
            json!({ "set": in_table("ports") }),
            json!({ "map": in_table("nodes") }),
            json!({ "chain": first }),
            json!({ "chain": in_table("to_guest") }),
            json!({ "chain": in_table("marks") }),
            rule("to_guest", &json!([{ "dnat": { "addr": "10.88.0.2" } }])),
            rule("marks", &json!([{ "mangle": { "key": "mark", "value": 1 } }])),
        ];
        objects.extend(rules.iter().map(|expressions| rule("pre", expressions)));
        Listing::parse(&json!({ "nftables": objects }).to_string()).unwrap()
    }

    fn rule(chain: &str, expressions: &Value) -> Value {
        json!({ "rule": { "family": "ip", "table": "nat", "chain": chain, "expr": expressions } })
    }

    fn dport(operator: &str, right: Value) -> Value {
        let field = json!({ "payload": { "protocol": "udp", "field": "dport" } });
        json!({ "match": { "op": operator, "left": field, "right": right } })
    }

    fn l4proto_and_dport() -> Value {
        json!({ "concat": [{ "meta": { "key": "l4proto" } }, { "payload": { "protocol": "th", "field": "dport" } }] })
    }

    #[test]
    fn ports_that_rules_name_are_found() {
        let dnat = || json!({ "dnat": { "addr": "10.88.0.2", "port": 51_820 } });
        let jump = |to: &str| json!({ "jump": { "target": to } });
        let to_guest = || jump("to_guest");
        let by_port = |data: Value| json!({ "key": { "payload": { "protocol": "udp", "field": "dport" } }, "data": data });
        for (expressions, expected) in [
            (json!([dport("==", 36_000.into()), dnat()]), vec![36_000..=36_000]),
            (
                json!([dport("==", json!({ "set": [80, { "range": [90, 99] }] })), { "redirect": { "port": 1 } }]),
                vec![80..=80, 90..=99],
            ),
            (json!([dport(">=", 60_000.into()), { "redirect": null }]), vec![60_000..=65_535]),
            (json!([dport("==", 31_234.into()), to_guest()]), vec![31_234..=31_234]),
            (json!([dport("==", 31_234.into()), jump("marks")]), vec![]),
            (json!([dport("==", 22.into()), { "accept": null }]), vec![]),
            (
                json!([{ "dnat": { "addr": { "map": by_port(json!({ "set": [[36_005, "10.0.0.1"], [{ "range": [7, 9] }, "10.0.0.2"]] })) } } }]),
                vec![36_005..=36_005, 7..=9],
            ),
            (
                json!([{ "vmap": by_port(json!({ "set": [[50_000, { "goto": { "target": "to_guest" } }], [50_001, { "drop": null }]] })) }]),
                vec![50_000..=50_000],
            ),
        ] {
            let Found { published, wanted, with_iptables } = found(std::slice::from_ref(&expressions));
            assert_eq!(published, Published { ports: expected, unread: Vec::new() }, "{expressions}");
            assert!(wanted.is_empty() && with_iptables.is_empty());
        }
    }

    #[test]
    fn sets_and_maps_with_names_are_asked_for_and_read() {
        let by_both = json!({ "key": l4proto_and_dport(), "data": "@nodes" });
        let rules = [
            json!([dport("==", "@ports".into()), { "dnat": { "addr": "10.0.0.1" } }]),
            json!([{ "vmap": by_both }]),
        ];
        let listing = listing(&rules);
        let first = published(&listing, &BTreeMap::new());
        assert_eq!(first.published, Published::default());
        let elements = |name: &SetName| match name.kind {
            "set" => json!([{ "range": [40_000, 40_010] }, { "elem": { "val": 41_000, "counter": null } }]),
            _ => json!([[{ "concat": ["tcp", 31_000] }, { "jump": { "target": "to_guest" } }],
                [{ "concat": ["udp", { "range": [31_001, 31_005] }] }, { "jump": { "target": "to_guest" } }]]),
        };
        let listed = |name: &SetName| {
            let mut object = json!({ "family": "ip", "table": "nat", "name": name.name });
            object["elem"] = elements(name);
            json!({ "nftables": [{ name.kind: object }] }).to_string()
        };
        assert_eq!(first.wanted.len(), 2);
        let sets =
            first.wanted.iter().map(|name| (name.clone(), name.elements(&listed(name)).unwrap())).collect();
        let Found { published, wanted, .. } = published(&listing, &sets);
        assert_eq!(published.ports, [40_000..=40_010, 41_000..=41_000, 31_000..=31_000, 31_001..=31_005]);
        assert!(published.unread.is_empty() && wanted.is_empty());
    }

    #[test]
    fn what_cannot_be_told_is_said_and_iptables_is_to_be_asked_for_its_own() {
        let dnat = || json!({ "dnat": { "addr": "10.88.0.2" } });
        for expressions in [json!([dnat()]), json!([dport("!=", 22.into()), dnat()])] {
            let Found { published, .. } = found(&[expressions]);
            assert_eq!(published.unread, ["a rule of the chain ip nat pre that names no port"]);
        }
        assert!(!found(&[json!([{ "xt": { "type": "target", "name": "DNAT" } }])]).with_iptables.is_empty());
    }

    #[test]
    fn a_set_that_cannot_be_read_is_an_error_and_an_empty_one_is_not() {
        let table = Table { family: "ip".to_owned(), name: "nat".to_owned() };
        let set = SetName { kind: "set", table, name: "ports".to_owned() };
        let empty = r#"{ "nftables": [{ "set": { "family": "ip", "table": "nat", "name": "ports" } }] }"#;
        assert_eq!(set.elements(empty).unwrap(), Vec::<Value>::new());
        assert!(set.elements("").is_err() && set.elements("{").is_err());
        assert_eq!(set.to_string(), "the set ip nat ports");
    }
}
