//! A table that protects an exit's flows and its host while the exit does not run. The table silently drops packets of the
//! clients' flows, so that the flows survive until the next start. It also drops packets that neighbours send to the host to be
//! forwarded.
//!
//! NAT ends with the daemon. Without this table, the kernel would then answer untranslated packets with a reset, which would end
//! the flow at its remote end. The conntrack entries stay, so this table can recognise the packets by their entries, and the next
//! daemon's NAT uses the same entries. While an exit runs, replies to its clients leave by its TUN, so none of these rules
//! matches.
//!
//! A killed exit leaves forwarding on until the next start or `warren cleanup` turns it off. Until then, this table applies the
//! exit's last rules for neighbours. While the exit runs, its own rules are evaluated first.

use std::{fs::File, path::Path};

use ipnet::IpNet;

use crate::{
    HostError, StepError, TableFamily, UndoError, exit_host::ExitHost, exit_ruleset, host::Host, nft,
    plan::table_text, undo::Undo,
};

pub use crate::table_names::HOLD_TABLE;

/// The table in the kernel. Dropping this leaves the table in place.
#[derive(Debug)]
pub struct Hold {
    host: Host,
}

/// The rules of the table in the kernel, which can be adapted to changes of the exit's host.
#[derive(Debug)]
pub struct HeldRules {
    ruleset: String,
    /// A descriptor of the journal's lock, which is passed to the nft processes that change the table.
    lock: File,
}

impl Hold {
    /// Opens the table's own journal, which may list the table of an earlier exit.
    ///
    /// # Errors
    /// If the journal cannot be used, or a running exit has it open.
    pub async fn open(journal: impl AsRef<Path>) -> Result<Self, HostError> {
        Ok(Self { host: Host::open_unfinished(journal.as_ref())? })
    }

    /// Creates the table for this exit. Atomically replaces the table of an earlier exit.
    ///
    /// # Errors
    /// If nft or the journal fails.
    pub async fn put(&mut self, exit: &ExitHost) -> Result<HeldRules, StepError> {
        self.host.note_once(Undo::Nftables { family: TableFamily::Inet, table: HOLD_TABLE.into() })?;
        let mut rules = HeldRules { ruleset: String::new(), lock: self.host.share_lock()? };
        rules.follow(exit).await?;
        Ok(rules)
    }

    /// Removes the table.
    ///
    /// # Errors
    /// If the table could not be removed. It then stays in the journal.
    pub async fn remove(mut self) -> Result<(), UndoError> {
        self.host.undo_all().await
    }
}

impl HeldRules {
    /// Replaces the table atomically if this exit's rules differ.
    ///
    /// # Errors
    /// If nft fails. In that case the old table stays.
    pub async fn follow(&mut self, exit: &ExitHost) -> Result<(), StepError> {
        let ruleset = ruleset(exit);
        if self.ruleset == ruleset {
            return Ok(());
        }
        let table = table_text(TableFamily::Inet, HOLD_TABLE, &ruleset, false);
        nft::replace(TableFamily::Inet, HOLD_TABLE, &table, self.lock.try_clone()?).await?;
        self.ruleset = ruleset;
        Ok(())
    }
}

/// The rules of the table for this exit.
pub(crate) fn ruleset(exit: &ExitHost) -> String {
    let ExitHost { device, ipv4, ipv6, .. } = exit;
    let ipv4 = ipv4.map(|pool| format!("ip saddr {}", pool.trunc()));
    let ipv6 = ipv6.map(|pool| format!("ip6 saddr {}", pool.trunc()));
    let drop_replies = |except: &str| -> String {
        let pools = ipv4.iter().chain(&ipv6);
        pools.map(|pool| format!("\t{except}ct direction reply ct original {pool} counter drop\n")).collect()
    };
    let [visits_here, visits_forwarded] = drop_visits(exit);
    format!(
        "chain input {{\n\ttype filter hook input priority filter - 10; policy accept;\n{}}}\n\
         chain forward {{\n\ttype filter hook forward priority filter - 10; policy accept;\n{}}}\n{}",
        // Packets that arrive by the TUN are excluded, because they answer connections that the exit itself opened to a client,
        // from an address of the pool.
        drop_replies(&format!("iifname != \"{device}\" ")) + &visits_here,
        drop_replies(&format!("oifname != \"{device}\" ")) + &visits_forwarded,
        exit_ruleset::without_exit(exit)
    )
}

/// Drops visitors' packets of connections to clients' forwarded ports that connection tracking still knows. Without this, the
/// kernel would reset the connections once NAT has ended or, if another program keeps NAT active, forward the packets to the
/// internet.
fn drop_visits(exit: &ExitHost) -> [String; 2] {
    let pools = [
        exit.ipv4.map(|pool| ("ip", IpNet::V4(pool.trunc()))),
        exit.ipv6.map(|pool| ("ip6", pool.trunc().into())),
    ];
    let pools = || pools.iter().flatten().filter(|_| !exit.forwards.is_empty());
    let device = &exit.device;
    let here = pools().map(|(family, pool)| {
        format!("\tct status dnat ct direction original ct reply {family} saddr {pool} counter drop\n")
    });
    let forwarded = pools().map(|(family, pool)| {
        format!("\toifname != \"{device}\" ct status dnat {family} daddr {pool} counter drop\n")
    });
    [here.collect(), forwarded.collect()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        DeviceName, ForwardedPorts, Forwarding, Ports, Surroundings, exit_plan, kill_switch::InboundProtocol,
    };

    #[test]
    fn only_replies_to_clients_that_cannot_reach_them_are_dropped_and_what_neighbours_would_have_forwarded() {
        let ens3 = DeviceName::new("ens3").unwrap();
        let exit = ExitHost {
            ipv4: Some("10.66.0.1/16".parse().unwrap()),
            ipv6: Some("fd66::1/64".parse().unwrap()),
            prefixes: vec!["192.168.8.0/24".parse().unwrap()],
            surroundings: Surroundings {
                routers: vec![ens3.clone()],
                forwarding: Forwarding {
                    ipv4_off: vec![ens3],
                    ipv6_others: Some(vec![DeviceName::new("br0").unwrap()]),
                    ..Forwarding::default()
                },
                ..Surroundings::default()
            },
            ..exit_plan::tests::host()
        };

        let text = ruleset(&exit);

        assert_eq!(
            text,
            "chain input {\n\
             \ttype filter hook input priority filter - 10; policy accept;\n\
             \tiifname != \"warren-exit\" ct direction reply ct original ip saddr 10.66.0.0/16 counter drop\n\
             \tiifname != \"warren-exit\" ct direction reply ct original ip6 saddr fd66::/64 counter drop\n\
             }\n\
             chain forward {\n\
             \ttype filter hook forward priority filter - 10; policy accept;\n\
             \toifname != \"warren-exit\" ct direction reply ct original ip saddr 10.66.0.0/16 counter drop\n\
             \toifname != \"warren-exit\" ct direction reply ct original ip6 saddr fd66::/64 counter drop\n\
             }\n\
             chain forward_for_clients {\n\
             \ttype filter hook forward priority filter + 10; policy accept;\n\
             \tiifname \"warren-exit\" accept\n\
             \tip saddr 10.66.0.0/16 counter drop\n\
             \tip saddr 192.168.8.0/24 counter drop\n\
             \tip6 saddr fd66::/64 counter drop\n\
             \tmeta nfproto ipv4 iifname { \"ens3\" } jump from_neighbours\n\
             \tmeta nfproto ipv6 iifname != { \"br0\" } jump from_neighbours\n\
             }\n\
             chain from_neighbours {\n\
             \tct state established,related accept\n\
             \tct status dnat accept\n\
             \tcounter drop\n\
             }\n"
        );
    }

    #[test]
    fn visitors_connections_are_held_too_while_the_exit_is_away() {
        let ports = Ports { protocol: InboundProtocol::Tcp, first: 443, last: 443 };
        let forward = ForwardedPorts { ports, to: 443, ipv4: "10.66.0.2".parse().ok(), ipv6: None };
        let exit = ExitHost { forwards: vec![forward], ipv6: None, ..exit_plan::tests::host() };

        let text = ruleset(&exit);

        let here = "\tct status dnat ct direction original ct reply ip saddr 10.66.0.0/16 counter drop\n}\n";
        let forwarded = "\toifname != \"warren-exit\" ct status dnat ip daddr 10.66.0.0/16 counter drop\n}\n";
        assert!(text.contains(here) && text.contains(forwarded), "{text}");
    }
}
