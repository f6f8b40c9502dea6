//! An exit's fleet, in the text of `warren status exit`.

use super::layout::Fields;
use super::units::time;
use warren_control::status::{FleetExitStatus, FleetStatus};

/// Adds a line about the fleet.
pub(super) fn add_line(fields: &mut Fields, fleet: &FleetStatus) {
    if fleet.is_removed {
        fields.add("fleet", format!("{} was removed from it", fleet.name));
        return;
    }
    let store = match fleet.store.as_str() {
        "reachable" => "its store answers".to_owned(),
        "reading" => "the clients are being read from its store".to_owned(),
        "refused" => "its store must not be used".to_owned(),
        _ => format!("its store has not answered for {}", time(fleet.silent_seconds)),
    };
    let state = |name: &str| fleet.exits.iter().filter(|exit| exit.state == name).count();
    let mut exits = format!("{} of {} exits serve", state("serving"), fleet.exits.len());
    if fleet.exits.is_empty() {
        exits = "no exit is known yet".to_owned();
    }
    fields.add("fleet", format!("{} in it; {store}; {exits}", fleet.name));
}

/// Adds the problems of the fleet, and their consequences for clients.
pub(super) fn add_trouble(fields: &mut Fields, fleet: &FleetStatus) {
    if let Some(reason) = &fleet.reason {
        fields.add("store", reason.clone());
    }
    match fleet.stale_in_seconds {
        _ if fleet.is_removed => fields.add(
            "stale",
            "clients are sent away, because this exit was removed from its fleet; run `warren fleet leave` here, and join again with a new \
             ticket if it is to come back"
                .to_owned(),
        ),
        left if fleet.is_stale => {
            let why = match left {
                Some(left) if left <= 0.0 => "it was away for max_staleness",
                Some(_) | None => "this exit's copy may have clients that were removed elsewhere",
            };
            fields.add(
                "stale",
                format!("clients are sent away until the store can be used again ({why})"),
            );
        }
        Some(left) if fleet.store != "reachable" => fields
            .add("stale", format!("clients are served for another {}, and no client can enrol", time(left))),
        Some(_) | None => {}
    }
    if fleet.is_draining && !fleet.is_stale && !fleet.is_removed {
        fields.add("draining", "clients are sent to other exits of the fleet".to_owned());
    }
    add_certificates(fields, fleet);
    if fleet.is_clock_wrong {
        let seconds = fleet.clock_offset_ms / 1_000;
        fields.add(
            "clock",
            format!("it differs from the fleet's by {seconds} s, so no invitation is redeemed here; check this host's time service, and with only two exits also the other's"),
        );
    }
}

/// Adds a line for each certificate of the store that expires within two weeks or has expired.
fn add_certificates(fields: &mut Fields, fleet: &FleetStatus) {
    for (name, days) in fleet.certificate_days.iter().filter(|(_, days)| **days < 14.0) {
        let text = match *days < 0.0 {
            true => format!(
                "{name} of the fleet's store has expired, so the store cannot be used; replace the certificate"
            ),
            false => {
                let left = match days.floor() {
                    whole if whole < 1.0 => "less than a day".to_owned(),
                    whole if whole < 2.0 => "1 day".to_owned(),
                    whole => format!("{whole} days"),
                };
                format!("{name} of the fleet's store expires in {left}; replace the certificate before then")
            }
        };
        fields.add("certificate", text);
    }
}

/// Formats every exit of the fleet, one per line.
pub(super) fn exits(fleet: &FleetStatus) -> String {
    let line = |exit: &FleetExitStatus| {
        let behind = match exit.is_behind() {
            true => format!(", behind the latest change for {:.0} s", exit.behind_seconds),
            false => String::new(),
        };
        format!(
            "\n{}  {}, {} of {} sessions, {} cores in use{behind}",
            exit.name,
            exit.state,
            exit.sessions,
            exit.max_sessions,
            (exit.cores * 100.0).round() / 100.0,
        )
    };
    fleet.exits.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet() -> FleetStatus {
        serde_json::from_value(serde_json::json!({
            "name": "ams1", "store": "reachable", "reason": null, "silent_seconds": 0.4, "max_staleness_seconds": 3600,
            "stale_in_seconds": 3599.6, "is_stale": false, "is_draining": false, "is_drained_by_operator": false,
            "revision": 7, "changed": 7, "clock_offset_ms": 3, "is_clock_wrong": false, "requests": {},
            "requests_open": 0, "roster_bytes": 0,
            "exits": [
                { "name": "ams1", "state": "serving", "sessions": 3, "max_sessions": 100, "bits_per_second": 5,
                  "cores": 0.254, "revision": 90, "behind_seconds": 2.0, "clock_offset_ms": 0, "endpoints": [] },
                { "name": "ams2", "state": "gone", "sessions": 0, "max_sessions": 100, "bits_per_second": 0,
                  "cores": 0.0, "revision": 0, "behind_seconds": 0.0, "clock_offset_ms": 0, "endpoints": [] },
                { "name": "ams3", "state": "draining", "sessions": 0, "max_sessions": 100, "bits_per_second": 0,
                  "cores": 0.0, "revision": 5, "behind_seconds": 12.4, "clock_offset_ms": 0, "endpoints": [] },
            ],
        }))
        .unwrap()
    }

    fn text(fleet: &FleetStatus) -> String {
        let mut fields = Fields::default();
        add_line(&mut fields, fleet);
        add_trouble(&mut fields, fleet);
        format!("{fields}{}", exits(fleet))
    }

    #[test]
    fn a_fleet_that_is_well_is_one_line_and_one_for_each_exit() {
        let text = text(&fleet());
        assert!(text.contains("ams1 in it; its store answers; 1 of 3 exits serve"), "{text}");
        assert!(text.contains("ams2  gone, 0 of 100 sessions, 0 cores in use\n"), "{text}");
        let behind = "ams3  draining, 0 of 100 sessions, 0 cores in use, behind the latest change for 12 s";
        assert!(text.contains(behind) && text.matches("behind").count() == 1, "{text}");
        assert!(!text.contains("stale") && !text.contains("clock"), "{text}");
    }

    #[test]
    fn what_is_wrong_is_said_with_what_follows() {
        let away = FleetStatus {
            store: "away".to_owned(),
            reason: Some("no route".to_owned()),
            silent_seconds: 61.0,
            stale_in_seconds: Some(120.0),
            clock_offset_ms: -90_000,
            is_clock_wrong: true,
            certificate_days: [
                ("ca".to_owned(), 20.0),
                ("client".to_owned(), 3.5),
                ("server b:1".to_owned(), 1.5),
                ("server c:1".to_owned(), 0.5),
                ("server a:1".to_owned(), -0.5),
            ]
            .into(),
            ..fleet()
        };
        let said = text(&away);
        assert!(!said.contains("ca of the"), "{said}");
        for part in [
            "client of the fleet's store expires in 3 days;",
            "server b:1 of the fleet's store expires in 1 day;",
            "server c:1 of the fleet's store expires in less than a day;",
            "server a:1 of the fleet's store has expired",
            "has not answered for",
            "no route",
            "served for another",
            "differs from the fleet's by -90 s",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let removed =
            FleetStatus { is_removed: true, is_draining: true, store: "no_link".to_owned(), ..away.clone() };
        let said = text(&removed);
        assert!(said.contains("ams1 was removed from it") && said.contains("warren fleet leave"), "{said}");
        let stale = FleetStatus { is_stale: true, is_draining: true, stale_in_seconds: Some(0.0), ..away };
        // The reason may be broken into lines.
        let in_one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let said = text(&stale);
        let reason = "until the store can be used again (it was away for max_staleness)";
        assert!(in_one_line(&said).contains(reason), "{said}");
        let (own, _exits) = said.split_once("\n\n").expect("what is wrong here, and the exits");
        assert!(!own.contains("draining"), "{said}");
        for left in [None, Some(60.0)] {
            let said = text(&FleetStatus { stale_in_seconds: left, ..stale.clone() });
            let reason = "until the store can be used again (this exit's copy may have";
            assert!(in_one_line(&said).contains(reason), "{said}");
        }
    }
}
