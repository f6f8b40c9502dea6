//! Finds other firewalls that keep clients from the exit, or from the internet behind it. A packet must pass every chain, so the
//! exit's own rules cannot help. The operator is told which rule to add, and where to add it.

use std::process::Command;

use crate::host::DEVICE;

/// A chain that drops every packet that none of its rules accepts. Its table has no rule that accepts the exit's packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InTheWay {
    /// Family, table and chain, as nft expects them.
    chain: String,
    hook: Hook,
    owner: Owner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hook {
    /// Packets to the exit itself.
    Input,
    /// Packets that the exit forwards.
    Forward,
}

/// The program that manages the chain. It would undo a rule that nft adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Ufw,
    Firewalld,
    /// A person, or a program that this module does not know.
    Unknown,
}

/// Checks this host's rules. Finds nothing on a host without nft.
pub fn look(ports: &[u16]) -> Vec<InTheWay> {
    let mut nft = Command::new("nft");
    // The output is parsed, so it must not depend on the operator's language. `--stateless` leaves out the values of counters.
    // `--terse` leaves out the elements of sets, which can be many.
    let listed = nft.args(["--stateless", "--terse", "list", "ruleset"]).env("LC_ALL", "C").output();
    let listed = listed.ok().filter(|listed| listed.status.success());
    listed.map_or_else(Vec::new, |listed| in_the_way(&String::from_utf8_lossy(&listed.stdout), ports))
}

/// Finds the chains in the output of `nft list ruleset`.
pub fn in_the_way(ruleset: &str, ports: &[u16]) -> Vec<InTheWay> {
    tables(ruleset).filter(|table| !table.is_warrens()).flat_map(|table| table.in_the_way(ports)).collect()
}

impl InTheWay {
    /// A message that names the chain and the packets that it drops.
    pub fn found(&self) -> String {
        let what = match self.hook {
            Hook::Input => "that come to the exit's UDP port",
            Hook::Forward => "that clients send to the internet",
        };
        format!(
            "the chain {} drops packets {what}: it drops every packet that no rule accepts, and no rule accepts these",
            self.chain
        )
    }

    /// The commands that let these packets through.
    pub fn fix(&self, ports: &[u16]) -> String {
        let lines: Vec<String> = match (self.owner, self.hook) {
            (Owner::Ufw, Hook::Input) => ports.iter().map(|port| format!("ufw allow {port}/udp")).collect(),
            (Owner::Ufw, Hook::Forward) => vec![format!("ufw route allow in on {DEVICE}")],
            (Owner::Firewalld, Hook::Input) => ports
                .iter()
                .map(|port| format!("firewall-cmd --permanent --add-port={port}/udp"))
                .chain(["firewall-cmd --reload".to_owned()])
                .collect(),
            (Owner::Firewalld, Hook::Forward) => vec![
                format!("firewall-cmd --permanent --zone=trusted --add-interface={DEVICE}"),
                "firewall-cmd --reload".to_owned(),
            ],
            (Owner::Unknown, Hook::Input) => ports
                .iter()
                .map(|port| format!("nft insert rule {} udp dport {port} accept", self.chain))
                .collect(),
            (Owner::Unknown, Hook::Forward) => ["iifname", "oifname"]
                .map(|side| format!("nft insert rule {} {side} {DEVICE} accept", self.chain))
                .into(),
        };
        let lasting = match self.owner {
            Owner::Unknown => ", and add the same to the file that these rules come from",
            Owner::Ufw | Owner::Firewalld => "",
        };
        format!("run: {}{lasting}", lines.join("; "))
    }
}

struct Table<'a> {
    /// Family and name.
    name: &'a str,
    lines: Vec<&'a str>,
}

/// The tables of a listing.
fn tables(ruleset: &str) -> impl Iterator<Item = Table<'_>> {
    let mut tables: Vec<Table<'_>> = Vec::new();
    for line in ruleset.lines().map(str::trim) {
        match line.strip_prefix("table ").and_then(|rest| rest.strip_suffix(" {")) {
            Some(name) => tables.push(Table { name, lines: Vec::new() }),
            None => tables.last_mut().into_iter().for_each(|table| table.lines.push(line)),
        }
    }
    tables.into_iter()
}

impl Table<'_> {
    fn is_warrens(&self) -> bool {
        // The first word is the family.
        self.name.split(' ').nth(1).is_some_and(|name| name.starts_with("warren"))
    }

    fn in_the_way(&self, ports: &[u16]) -> Vec<InTheWay> {
        let mut found = Vec::new();
        let (mut chain, mut hook, mut drops) = ("", None, false);
        for line in &self.lines {
            if let Some(name) = line.strip_prefix("chain ").and_then(|rest| rest.strip_suffix(" {")) {
                (chain, hook, drops) = (name, None, false);
            // nft prints a chain's hook and policy on one line, ahead of its rules.
            } else if line.starts_with("type filter hook ") {
                hook = hook_of(line);
                drops = line.ends_with("policy drop;");
            } else if *line == "}" {
                found.extend(hook.take().filter(|_| drops).map(|hook| (chain, hook)));
            } else {
                // The place of this rule in the chain does not matter. Rules that accept the exit's packets are searched for in the
                // whole table.
                drops |= refuses_everything(line);
            }
        }
        found.retain(|(_, hook)| !self.has_rule_for(*hook, ports));
        let in_the_way =
            |(chain, hook)| InTheWay { chain: format!("{} {chain}", self.name), hook, owner: self.owner() };
        found.into_iter().map(in_the_way).collect()
    }

    /// Whether any rule of the table accepts the exit's packets. All chains count, since one chain may jump to another.
    fn has_rule_for(&self, hook: Hook, ports: &[u16]) -> bool {
        let accepts = |wanted: &dyn Fn(&str) -> bool| {
            self.lines.iter().any(|line| line.ends_with("accept") && wanted(line))
        };
        match hook {
            Hook::Input => ports.iter().all(|port| accepts(&|line| takes_port(line, *port))),
            Hook::Forward => accepts(&|line| line.contains(DEVICE) || line.contains("\"warren*\"")),
        }
    }

    fn owner(&self) -> Owner {
        if self.name.ends_with(" firewalld") {
            Owner::Firewalld
        } else if self.lines.iter().any(|line| line.starts_with("chain ufw")) {
            Owner::Ufw
        } else {
            Owner::Unknown
        }
    }
}

fn hook_of(line: &str) -> Option<Hook> {
    match line.split(' ').nth(3)? {
        "input" => Some(Hook::Input),
        "forward" => Some(Hook::Forward),
        _ => None,
    }
}

/// Whether a rule drops everything. Some firewalls end a chain with such a rule and leave its policy at accept.
fn refuses_everything(line: &str) -> bool {
    let rule = line.strip_prefix("counter ").unwrap_or(line);
    rule == "drop" || rule == "reject" || rule.starts_with("reject with ")
}

/// Whether a rule matches a UDP port, given as one port, in a set, or in a range.
fn takes_port(line: &str, port: u16) -> bool {
    let Some((before, ports)) = line.split_once("dport ") else { return false };
    // `th dport`, the port of any transport protocol, matches too.
    if before.contains("tcp") && !before.contains("udp") {
        return false;
    }
    let ports = match ports.strip_prefix("{ ") {
        Some(set) => set.split(" }").next().unwrap_or_default(),
        None => ports.split(' ').next().unwrap_or_default(),
    };
    ports.split(", ").any(|one| {
        let (first, last) = one.split_once('-').unwrap_or((one, one));
        matches!((first.parse::<u16>(), last.parse::<u16>()), (Ok(first), Ok(last)) if (first..=last).contains(&port))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: &str = "table inet warren_exit {\n\tchain forward {\n\t\ttype filter hook forward priority filter; policy drop;\n\t}\n}\n\
        table ip nat {\n\tchain PREROUTING {\n\t\ttype nat hook prerouting priority dstnat; policy accept;\n\t}\n}\n";

    fn found(ruleset: &str) -> Vec<(String, Hook)> {
        in_the_way(ruleset, &[443]).into_iter().map(|found| (found.chain, found.hook)).collect()
    }

    fn table(head: &str, input: &str, forward: &str) -> String {
        format!(
            "{OPEN}table {head} {{\n\tchain in {{\n\t\ttype filter hook input priority filter; {input}\n\t}}\n\n\
             \tchain fwd {{\n\t\ttype filter hook forward priority filter; {forward}\n\t}}\n}}\n"
        )
    }

    #[test]
    fn chains_that_drop_by_policy_or_by_their_last_rule_are_found() {
        assert_eq!(found(&table("inet f", "policy accept;", "policy accept;")), []);
        let both = [("inet f in".to_owned(), Hook::Input), ("inet f fwd".to_owned(), Hook::Forward)];
        assert_eq!(found(&table("inet f", "policy drop;", "policy drop;")), both);
        for last in ["drop", "counter drop", "reject", "reject with icmpx admin-prohibited"] {
            let rules = format!("policy accept;\n\t\tct state established,related accept\n\t\t{last}");
            assert_eq!(found(&table("inet f", &rules, &rules)), both, "{last}");
        }
        let conditional = "policy accept;\n\t\tct state invalid drop\n\t\tip saddr 192.0.2.1 drop";
        assert_eq!(found(&table("inet f", conditional, conditional)), []);
    }

    #[test]
    fn a_rule_for_the_exit_takes_its_chain_out_of_the_way() {
        for rule in [
            "udp dport 443 accept",
            "udp dport { 53, 443 } accept",
            "meta l4proto udp udp dport 400-500 counter accept",
            "th dport 443 accept",
        ] {
            let input = format!("policy drop;\n\t\t{rule}");
            assert_eq!(found(&table("inet f", &input, "policy accept;")), [], "{rule}");
        }
        for rule in [
            "tcp dport 443 accept",
            "udp dport 4433 accept",
            "udp dport { 53, 444 } accept",
            "udp dport 443 drop",
        ] {
            let input = format!("policy drop;\n\t\t{rule}");
            assert_eq!(found(&table("inet f", &input, "policy accept;")).len(), 1, "{rule}");
        }
        let forward = "policy drop;\n\t\tiifname \"warren-exit\" accept";
        assert_eq!(found(&table("inet f", "policy accept;", forward)), []);
    }

    #[test]
    fn the_fix_is_in_the_words_of_who_manages_the_chain() {
        let fixes = |head: &str, chains: &str| {
            let text = table(head, "policy drop;", "policy drop;") + chains;
            in_the_way(&text, &[443]).iter().map(|found| found.fix(&[443])).collect::<Vec<_>>().join("\n")
        };
        let by_hand = fixes("inet f", "");
        assert!(
            by_hand.contains("nft insert rule inet f in udp dport 443 accept, and add the same"),
            "{by_hand}"
        );
        assert!(by_hand.contains("nft insert rule inet f fwd oifname warren-exit accept"), "{by_hand}");
        assert!(fixes("inet firewalld", "").contains("--add-port=443/udp; firewall-cmd --reload"));
        let ufw = table("ip filter", "policy drop;", "policy drop;\n\t}\n\tchain ufw-user-input {");
        let ufw: Vec<String> = in_the_way(&ufw, &[443]).iter().map(|found| found.fix(&[443])).collect();
        assert_eq!(ufw, ["run: ufw allow 443/udp", "run: ufw route allow in on warren-exit"]);
    }
}
