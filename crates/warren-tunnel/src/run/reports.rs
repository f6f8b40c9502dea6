//! Reports to the control plane, in order.

use tokio::sync::mpsc;

use super::Worker;
use crate::message::Report;

impl Worker {
    /// Sends a report to the control plane, or keeps it while the channel is full.
    pub(super) fn report(&mut self, report: Report) {
        // A new report must not overtake those that already wait.
        if !self.unsent_reports.is_empty() {
            self.unsent_reports.push_back(report);
            return;
        }
        match self.reports.try_send(report) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(report)) => self.unsent_reports.push_back(report),
            // Without the control plane, nothing else would ever stop this worker.
            Err(mpsc::error::TrySendError::Closed(_)) => self.stopping = Some((0, String::new())),
        }
    }

    /// Sends the reports that wait. Returns whether some still wait.
    pub(super) fn flush_reports(&mut self) -> bool {
        for report in std::mem::take(&mut self.unsent_reports) {
            self.report(report);
        }
        !self.unsent_reports.is_empty()
    }
}
