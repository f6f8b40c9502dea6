//! What keeps an exit's flows alive while the exit is away: a table that outlives it and drops, without a word, what comes
//! in for them.
//!
//! NAT goes with the daemon, and the kernel answers packets that nobody translates any more with a reset, which ends the
//! flow at its other end. The connection tracking entries stay, so they tell these packets; the next daemon's NAT uses the
//! same entries. While an exit runs none of the rules matches anything: replies to its clients leave by its TUN.

use std::path::Path;

use ipnet::{Ipv4Net, Ipv6Net};

use crate::{
    DeviceName, HostError, StepError, TableFamily, UndoError, host::Host, nft, plan::table_text, undo::Undo,
};

/// The table's name, of family `inet`. It belongs to no process.
pub const HOLD_TABLE: &str = "warren_exit_hold";

/// The table as it stands; dropping this leaves it there.
#[derive(Debug)]
pub struct Hold {
    host: Host,
}

impl Hold {
    /// Opens the hold's own journal, which may list a predecessor's table.
    ///
    /// # Errors
    /// If the journal cannot be used, or a running exit has it open.
    pub async fn open(journal: impl AsRef<Path>) -> Result<Self, HostError> {
        Ok(Self { host: Host::open_unfinished(journal.as_ref())? })
    }

    /// Makes the table for these pools, in place of a predecessor's and without a moment between them.
    ///
    /// # Errors
    /// If nft or the journal fails.
    pub async fn put(
        &mut self,
        device: &DeviceName,
        ipv4: Option<Ipv4Net>,
        ipv6: Option<Ipv6Net>,
    ) -> Result<(), StepError> {
        self.host.note_once(Undo::Nftables { family: TableFamily::Inet, table: HOLD_TABLE.into() })?;
        let table = table_text(TableFamily::Inet, HOLD_TABLE, &ruleset(device, ipv4, ipv6), false);
        nft::replace(TableFamily::Inet, HOLD_TABLE, &table, self.host.share_lock()?).await?;
        Ok(())
    }

    /// Removes the table.
    ///
    /// # Errors
    /// If it could not be removed; it is still in the journal.
    pub async fn remove(mut self) -> Result<(), UndoError> {
        self.host.undo_all().await
    }
}

fn ruleset(device: &DeviceName, ipv4: Option<Ipv4Net>, ipv6: Option<Ipv6Net>) -> String {
    let ipv4 = ipv4.map(|pool| format!("ip saddr {}", pool.trunc()));
    let ipv6 = ipv6.map(|pool| format!("ip6 saddr {}", pool.trunc()));
    let drop_replies = |except: &str| -> String {
        let pools = ipv4.iter().chain(&ipv6);
        pools.map(|pool| format!("\t{except}ct direction reply ct original {pool} counter drop\n")).collect()
    };
    format!(
        "chain input {{\n\ttype filter hook input priority filter - 10; policy accept;\n{}}}\n\
         chain forward {{\n\ttype filter hook forward priority filter - 10; policy accept;\n{}}}\n",
        // What comes in by the TUN answers a connection that the exit itself opened to a client, from an address of the pool.
        drop_replies(&format!("iifname != \"{device}\" ")),
        drop_replies(&format!("oifname != \"{device}\" "))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_replies_to_clients_that_cannot_reach_them_are_dropped() {
        let device = DeviceName::new("warren-exit").unwrap();

        let text =
            ruleset(&device, Some("10.66.0.1/16".parse().unwrap()), Some("fd66::1/64".parse().unwrap()));

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
             }\n"
        );
    }
}
