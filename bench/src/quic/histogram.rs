//! A table of how many UDP datagrams each send and receive call carried. The rows are ranges that start at powers of two.

use super::snapshot::Sockets;
use crate::{report::Table, stats::share};

/// Makes a table with a row for each range. It shows the share of calls whose number of datagrams is in the range, for sends and
/// receives of both sides.
pub(super) fn table(client: &Sockets, exit: &Sockets) -> Table {
    let columns = [
        by_power_of_two(&client.segments_per_send),
        client.datagrams_per_receive.clone(),
        by_power_of_two(&exit.segments_per_send),
        exit.datagrams_per_receive.clone(),
    ];
    let mut table = Table::new([
        "UDP datagrams in one",
        "send of the client",
        "receive of the client",
        "send of the exit",
        "receive of the exit",
    ]);
    let places = columns.iter().map(Vec::len).max().unwrap_or(0);
    for place in 0..places {
        let cells = columns.each_ref().map(|column| {
            let count = column.get(place).copied().unwrap_or(0);
            if count == 0 {
                "-".to_owned()
            } else {
                format!("{:.1} %", share(count, column.iter().sum()) * 100.0)
            }
        });
        // A range without calls gets no row.
        if cells.iter().any(|cell| cell != "-") {
            let [a, b, c, d] = cells;
            table.row([range(place), a, b, c, d]);
        }
    }
    table
}

/// Sums counts by range: index i of the result is the sum of the counts of 2^i to 2^(i+1) - 1 datagrams. The histogram of
/// receives already has these ranges.
fn by_power_of_two(by_number: &[u64]) -> Vec<u64> {
    let mut places = Vec::new();
    // No send has 0 datagrams, and 0 has no logarithm.
    for (number, count) in by_number.iter().enumerate().skip(1) {
        let place = number.ilog2() as usize;
        places.resize(places.len().max(place + 1), 0);
        if let Some(sum) = places.get_mut(place) {
            *sum += count;
        }
    }
    places
}

/// Formats the range of an index, 2^i to 2^(i+1) - 1.
fn range(place: usize) -> String {
    if place == 0 { "1".to_owned() } else { format!("{}-{}", 1_u64 << place, (2_u64 << place) - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_are_added_up_by_powers_of_two() {
        assert_eq!(by_power_of_two(&[0, 5, 1, 2, 0, 7]), [5, 3, 7]);
        assert!(by_power_of_two(&[]).is_empty());
    }

    #[test]
    fn places_are_powers_of_two() {
        assert_eq!([0, 1, 5].map(range), ["1", "2-3", "32-63"]);
    }

    #[test]
    fn table_has_a_row_for_each_range_that_was_seen() {
        let client = Sockets { segments_per_send: vec![0, 1, 0, 0, 0, 3], ..Sockets::default() };
        let exit = Sockets { datagrams_per_receive: vec![0, 0, 4], ..Sockets::default() };
        let text = table(&client, &exit).to_string();
        let rows: Vec<Vec<&str>> =
            text.lines().skip(2).map(|line| line.split('|').map(str::trim).collect()).collect();
        assert_eq!(rows[0], ["", "1", "25.0 %", "-", "-", "-", ""]);
        assert_eq!(rows[1], ["", "4-7", "75.0 %", "-", "-", "100.0 %", ""]);
        assert_eq!(rows.len(), 2);
    }
}
