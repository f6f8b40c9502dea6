//! A strict parser for OpenMetrics 1.0 text. It checks that a scrape is valid, and returns its values.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Net;

const DASHBOARD: &str = include_str!("../../../../configs/grafana-dashboard.json");
const ALERTS: &str = include_str!("../../../../configs/prometheus-alerts.yml");
const DOCUMENTATION: &str = include_str!("../../../../docs/metrics.md");

/// A valid scrape.
#[derive(Debug, Default)]
pub struct OpenMetrics {
    /// The families and their types.
    pub families: BTreeMap<String, String>,
    /// Every sample, by name and labels as written in the text.
    pub samples: BTreeMap<String, f64>,
}

impl OpenMetrics {
    /// The net exit's metrics as Prometheus gets them. Fails unless they are valid.
    #[track_caller]
    pub fn scrape(net: &Net) -> Self {
        let page = Self::page(net);
        Self::parse(&page).unwrap_or_else(|problem| panic!("{problem}\n{page}"))
    }

    /// The net exit's metrics as unparsed text.
    #[track_caller]
    pub fn page(net: &Net) -> String {
        let fetch = "curl --silent --show-error --fail --max-time 20 http://127.0.0.1:9466/metrics";
        let answer = net.exit.sh(fetch);
        assert!(answer.succeeded(), "{answer:?}");
        answer.stdout
    }

    /// Parses the text of a scrape.
    ///
    /// # Errors
    /// The line that breaks a rule of the format, and the rule.
    pub fn parse(text: &str) -> Result<Self, String> {
        let body = text.strip_suffix("# EOF\n").ok_or("the text must end with # EOF")?;
        let mut scrape = Self::default();
        let mut family = String::new();
        for line in body.lines() {
            let problem = |rule: &str| format!("{rule}: {line:?}");
            if let Some(metadata) = line.strip_prefix("# ") {
                let mut words = metadata.splitn(3, ' ');
                let (Some(kind), Some(name), Some(value)) = (words.next(), words.next(), words.next()) else {
                    return Err(problem("metadata have a kind, a name and a value"));
                };
                check_name(name).map_err(|rule| problem(&rule))?;
                if name != family && scrape.families.contains_key(name) {
                    return Err(problem("a family stands in one place"));
                }
                family = name.to_owned();
                match kind {
                    "TYPE" if !["counter", "gauge", "histogram", "info"].contains(&value) => {
                        return Err(problem("the type is known"));
                    }
                    "TYPE" => drop(scrape.families.insert(family.clone(), value.to_owned())),
                    "HELP" if value.is_empty() => return Err(problem("help has words")),
                    "HELP" => drop(scrape.families.entry(family.clone()).or_default()),
                    "UNIT" if !name.ends_with(&format!("_{value}")) => {
                        return Err(problem("a unit ends its family's name"));
                    }
                    "UNIT" => {}
                    _ => return Err(problem("there are only HELP, TYPE and UNIT")),
                }
                continue;
            }
            let (series, value) = line.rsplit_once(' ').ok_or_else(|| problem("a sample has a value"))?;
            let name = series.split_once('{').map_or(series, |(name, _)| name);
            let kind = scrape.families.get(&family).map(String::as_str).unwrap_or_default();
            let suffix =
                name.strip_prefix(family.as_str()).ok_or_else(|| problem("a sample has a family"))?;
            let allowed: &[&str] = match kind {
                "counter" => &["_total"],
                "gauge" => &[""],
                "histogram" => &["_bucket", "_sum", "_count"],
                "info" => &["_info"],
                _ => return Err(problem("a family has its type before its samples")),
            };
            if !allowed.contains(&suffix) {
                return Err(problem("a sample's suffix is one of its family's type"));
            }
            if let Some((_, labels)) = series.split_once('{') {
                check_labels(labels).map_err(|rule| problem(&rule))?;
            }
            let value: f64 = value.parse().map_err(|_| problem("a value is a number"))?;
            if value.is_nan() || (kind != "gauge" && value < 0.0) {
                return Err(problem("what is counted is not negative"));
            }
            if scrape.samples.insert(series.to_owned(), value).is_some() {
                return Err(problem("a series is there once"));
            }
            if suffix == "_bucket" {
                scrape.check_bucket(&family, series, value).map_err(|rule| problem(&rule))?;
            }
        }
        scrape.check_histograms()?;
        Ok(scrape)
    }

    /// One sample's value.
    #[track_caller]
    pub fn value(&self, series: &str) -> f64 {
        *self.samples.get(series).unwrap_or_else(|| panic!("no {series} in the scrape"))
    }

    /// The names of all samples.
    pub fn names(&self) -> BTreeSet<&str> {
        self.samples.keys().map(|series| series.split_once('{').map_or(&**series, |(name, _)| name)).collect()
    }

    /// Checks that buckets are ordered by their bounds and are cumulative. This exit's histograms have no other labels.
    fn check_bucket(&self, family: &str, series: &str, value: f64) -> Result<(), String> {
        let bound = bound_of(series)?;
        for (other, count) in self.buckets(family) {
            let other = bound_of(other)?;
            if other > bound || (other < bound && count > value) {
                return Err("buckets rise with their bounds".to_owned());
            }
        }
        Ok(())
    }

    fn check_histograms(&self) -> Result<(), String> {
        for family in self.families.iter().filter(|(_, kind)| *kind == "histogram").map(|(family, _)| family)
        {
            let all = self.samples.get(&format!("{family}_bucket{{le=\"+Inf\"}}"));
            if all.is_none() || all != self.samples.get(&format!("{family}_count")) {
                return Err(format!("{family} has a bucket without bound that has its count"));
            }
        }
        Ok(())
    }

    fn buckets(&self, family: &str) -> impl Iterator<Item = (&str, f64)> {
        let prefix = format!("{family}_bucket{{");
        self.samples
            .iter()
            .filter(move |(series, _)| series.starts_with(&prefix))
            .map(|(series, count)| (series.as_str(), *count))
    }
}

fn bound_of(series: &str) -> Result<f64, String> {
    let bound = series.split_once("{le=\"").and_then(|(_, rest)| rest.strip_suffix("\"}"));
    match bound {
        Some("+Inf") => Ok(f64::INFINITY),
        Some(bound) => bound.parse().map_err(|_| "a bound is a number".to_owned()),
        None => Err("a bucket has a bound".to_owned()),
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if starts_well && name.chars().all(allowed) {
        Ok(())
    } else {
        Err("a name has letters, digits and underscores".to_owned())
    }
}

/// Checks `name="value",...}`, in which quotes, backslashes and line breaks of the value are escaped.
fn check_labels(labels: &str) -> Result<(), String> {
    let mut names = BTreeSet::new();
    let mut rest = labels;
    loop {
        let (name, after) = rest.split_once("=\"").ok_or("a label has a value in quotes")?;
        check_name(name)?;
        if !names.insert(name) {
            return Err("a label is there once".to_owned());
        }
        let end = end_of_value(after).ok_or("a label's value ends")?;
        rest = &after[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None if rest == "}" => return Ok(()),
            None => return Err("labels end with a brace".to_owned()),
        }
    }
}

fn end_of_value(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, c)| match c {
        '"' if !escaped => Some(at),
        _ => {
            escaped = c == '\\' && !escaped;
            None
        }
    })
}

/// Checks that the scrape has every metric that a panel or rule uses, and that the documentation lists every family.
#[track_caller]
pub fn assert_configs_name_what_exists(scraped: &OpenMetrics) {
    assert_dashboard_is_one();
    let expressions = expressions();
    assert!(expressions.len() > 20, "{expressions:?}");
    let names = scraped.names();
    for expression in &expressions {
        let used: Vec<&str> = metrics_in(expression).collect();
        assert!(!used.is_empty(), "{expression}");
        for name in used {
            // Only an exit of a fleet has these.
            let is_of_fleet = name.starts_with("warren_fleet_") && !names.contains("warren_fleet_store_up");
            assert!(is_of_fleet || names.contains(name), "{name} of {expression} is not in the scrape");
        }
    }
    for family in scraped.families.keys() {
        assert!(DOCUMENTATION.contains(&format!("`{family}`")), "docs/metrics.md lacks {family}");
    }
}

/// Checks the same for the metrics of a fleet, in the scrape of an exit that belongs to one.
#[track_caller]
pub fn assert_configs_name_what_a_fleet_has(scraped: &OpenMetrics) {
    let names = scraped.names();
    let of_fleet = |name: &&str| name.starts_with("warren_fleet_");
    let expressions = expressions();
    let used: BTreeSet<&str> =
        expressions.iter().flat_map(|text| metrics_in(text)).filter(of_fleet).collect();
    assert!(used.len() > 8, "{used:?}");
    assert!(used.is_subset(&names), "not in the scrape: {:?}", used.difference(&names));
    for family in scraped.families.keys().filter(|family| of_fleet(&family.as_str())) {
        assert!(DOCUMENTATION.contains(&format!("`{family}`")), "docs/metrics.md lacks {family}");
    }
}

/// The Prometheus expressions of the dashboard's panels and of the rules.
pub fn expressions() -> Vec<String> {
    let targets = panels().into_iter().flat_map(|panel| list(&panel, "targets"));
    let of_panels = targets.map(|target| target["expr"].as_str().unwrap().to_owned());
    let rules = ALERTS.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    of_panels.chain(rules.map(str::to_owned)).collect()
}

/// Checks the dashboard against Grafana's model of schema version 38. Panels have known types, do not overlap, use the
/// selected data source, and use only variables that exist.
#[track_caller]
fn assert_dashboard_is_one() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("the dashboard is JSON");
    assert_eq!(dashboard["schemaVersion"], 38);
    let variables = list(&dashboard["templating"], "list");
    let variables: BTreeSet<&str> =
        variables.iter().filter_map(|variable| variable["name"].as_str()).collect();
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels() {
        assert!(ids.insert(panel["id"].as_u64().expect("a panel has a number")), "numbers are unique");
        assert!(panel["title"].is_string(), "{panel:#}");
        assert!(["stat", "timeseries", "row"].contains(&panel["type"].as_str().unwrap()), "{panel:#}");
        let place =
            |key: &str| panel["gridPos"][key].as_u64().unwrap_or_else(|| panic!("no {key}: {panel:#}"));
        assert!(place("x") + place("w") <= 24 && place("w") > 0 && place("h") > 0, "{panel:#}");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "the panel overlaps another: {panel:#}");
            }
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{panel:#}");
        let targets = list(&panel, "targets");
        assert!(!targets.is_empty(), "{panel:#}");
        let references: BTreeSet<&str> =
            targets.iter().filter_map(|target| target["refId"].as_str()).collect();
        assert_eq!(references.len(), targets.len(), "every target has its own letter: {panel:#}");
        for used in targets.iter().flat_map(|target| target["expr"].as_str().unwrap().split('$').skip(1)) {
            let name = used.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap();
            assert!(
                variables.contains(name) || name.starts_with("__"),
                "there is no variable ${name}: {panel:#}"
            );
        }
    }
}

fn panels() -> Vec<Value> {
    list(&serde_json::from_str(DASHBOARD).expect("the dashboard is JSON"), "panels")
}

fn list(value: &Value, key: &str) -> Vec<Value> {
    value[key].as_array().unwrap_or_else(|| panic!("no {key} in {value:#}")).clone()
}

fn metrics_in(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("warren_") || word.starts_with("process_"))
}

#[test]
fn what_breaks_a_rule_of_open_metrics_is_refused() {
    let valid = "# HELP a Help.\n# TYPE a counter\na_total{b=\"c\\\"\",d=\"\"} 1\n# EOF\n";
    assert_eq!(OpenMetrics::parse(valid).unwrap().samples.len(), 1);
    let histogram = |buckets: &str| format!("# TYPE a histogram\n{buckets}# EOF\n");
    let good = "a_sum 1.5\na_count 2\na_bucket{le=\"1.0\"} 1\na_bucket{le=\"+Inf\"} 2\n";
    assert!(OpenMetrics::parse(&histogram(good)).is_ok());
    for broken in [
        "# TYPE a counter\na_total 1\n".to_owned(),
        "# TYPE a counter\na 1\n# EOF\n".to_owned(),
        "a_total 1\n# TYPE a counter\n# EOF\n".to_owned(),
        "# TYPE a counter\na_total -1\n# EOF\n".to_owned(),
        "# TYPE a counter\na_total one\n# EOF\n".to_owned(),
        "# TYPE a counter\na_total 1\na_total 2\n# EOF\n".to_owned(),
        "# TYPE a counter\n# TYPE b counter\n# TYPE a counter\n# EOF\n".to_owned(),
        "# TYPE a counter\na_total{b=\"c\",b=\"d\"} 1\n# EOF\n".to_owned(),
        "# TYPE a counter\na_total{b=\"c} 1\n# EOF\n".to_owned(),
        "# TYPE a counter\na_total{b=c} 1\n# EOF\n".to_owned(),
        "# TYPE a-b gauge\na-b 1\n# EOF\n".to_owned(),
        "# TYPE a gauge\n\na 1\n# EOF\n".to_owned(),
        histogram("a_sum 1\na_count 2\na_bucket{le=\"1.0\"} 2\n"),
        histogram("a_sum 1\na_count 2\na_bucket{le=\"1.0\"} 3\na_bucket{le=\"+Inf\"} 2\n"),
        histogram("a_sum 1\na_count 2\na_bucket{le=\"+Inf\"} 2\na_bucket{le=\"1.0\"} 2\n"),
        histogram("a_sum 1\na_count 3\na_bucket{le=\"+Inf\"} 2\n"),
    ] {
        assert!(OpenMetrics::parse(&broken).is_err(), "{broken}");
    }
}
