//! Describes a connection's path in words: its losses, what remains of them after repair, and its queue.

use super::units::percent;
use warren_control::status::{ConnectionStatus, ControllerStatus, RepairStatus};

/// Loss in per cent from which a path is called lossy.
const LOSSY: f64 = 0.05;

/// Describes the path in words, such as `lossy path: 1.1 % lost, 0 % after repair, short queue`. Empty if nothing is known.
pub(super) fn condition(connection: &ConnectionStatus) -> String {
    let loss = loss(&connection.repair);
    let queue = connection.controller.map(queue).map(str::to_owned);
    loss.into_iter().chain(queue).collect::<Vec<_>>().join(", ")
}

/// The path in words, with the counts of repair. The counts are left out if all are zero.
pub(super) fn details(connection: &ConnectionStatus) -> String {
    let RepairStatus { repaired, given_up, waiting, .. } = connection.repair;
    let counts = format!("{repaired} repaired, {given_up} given up, {waiting} waiting");
    let has_counts = repaired > 0 || given_up > 0 || waiting > 0;
    let condition = condition(connection);
    match (condition.is_empty(), has_counts) {
        (false, true) => format!("{condition}; {counts}"),
        (false, false) => condition,
        (true, true) => counts,
        (true, false) => String::new(),
    }
}

fn loss(repair: &RepairStatus) -> Option<String> {
    if repair.loss_percent < LOSSY {
        return None;
    }
    let lost = percent(repair.loss_percent);
    Some(match repair.is_on {
        true => format!("lossy path: {lost} lost, {} after repair", percent(repair.given_up_percent)),
        false => format!("lossy path: {lost} lost, not repaired"),
    })
}

fn queue(controller: ControllerStatus) -> &'static str {
    match controller {
        ControllerStatus::Starting => "looking for the path's rate",
        ControllerStatus::ShortQueue => "short queue",
        ControllerStatus::Probing => "finding out whether its own traffic causes the queue or loss",
        ControllerStatus::Sharing => "shares a full queue with another flow",
        ControllerStatus::Marked => "follows the marks (ECN) of the path's queue",
    }
}

#[cfg(test)]
mod tests {
    use super::super::watch::example;
    use super::*;

    fn connection(controller: Option<ControllerStatus>, repair: RepairStatus) -> ConnectionStatus {
        let connection = example(&[(1, 0, 0)]).connections.remove(0);
        ConnectionStatus { controller, repair, ..connection }
    }

    #[test]
    fn a_clean_path_has_the_controllers_words_alone() {
        let clean = RepairStatus { is_on: true, loss_percent: 0.01, ..RepairStatus::default() };
        assert_eq!(details(&connection(Some(ControllerStatus::ShortQueue), clean)), "short queue");
        assert_eq!(
            details(&connection(Some(ControllerStatus::Sharing), clean)),
            "shares a full queue with another flow"
        );
        assert_eq!(details(&connection(None, clean)), "");
    }

    #[test]
    fn a_lossy_path_says_what_is_left_after_repair() {
        let repair = RepairStatus {
            is_on: true,
            loss_percent: 1.1,
            repaired: 312,
            given_up: 2,
            waiting: 5,
            ..RepairStatus::default()
        };
        assert_eq!(
            details(&connection(Some(ControllerStatus::ShortQueue), repair)),
            "lossy path: 1.1 % lost, 0 % after repair, short queue; 312 repaired, 2 given up, 5 waiting"
        );
        let left = RepairStatus { given_up_percent: 0.02, ..repair };
        assert_eq!(condition(&connection(None, left)), "lossy path: 1.1 % lost, <0.1 % after repair");
        let off = RepairStatus { is_on: false, ..repair };
        assert_eq!(condition(&connection(None, off)), "lossy path: 1.1 % lost, not repaired");
    }
}
