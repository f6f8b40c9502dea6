//! The output of `warren status --json`.

use serde_json::Value;

/// One status report.
#[derive(Clone, Debug)]
pub struct Status(pub Value);

impl Status {
    pub fn text(&self, pointer: &str) -> &str {
        self.at(pointer).as_str().unwrap_or_else(|| panic!("{pointer} is not a string in {:#}", self.0))
    }

    #[track_caller]
    pub fn number(&self, pointer: &str) -> u64 {
        self.at(pointer).as_u64().unwrap_or_else(|| panic!("{pointer} is not a number in {:#}", self.0))
    }

    pub fn list(&self, pointer: &str) -> &[Value] {
        self.at(pointer).as_array().unwrap_or_else(|| panic!("{pointer} is not a list in {:#}", self.0))
    }

    /// TUN writes, and the packets in them.
    #[track_caller]
    pub fn writes_and_packets(&self) -> (u64, u64) {
        (self.number("/totals/tun_writes"), self.number("/totals/tun_written_packets"))
    }

    /// The sum of `field` over the connections.
    pub fn sum(&self, field: &str) -> u64 {
        self.each(field).iter().sum()
    }

    /// `field` of each connection.
    pub fn each(&self, field: &str) -> Vec<u64> {
        let number = |connection: &Value| connection[field].as_u64();
        let list = self.list("/connections");
        list.iter().map(|one| number(one).unwrap_or_else(|| panic!("no {field} in {one:#}"))).collect()
    }

    /// The sum of all drops in the direction `to` ("carrier" or "tun").
    pub fn drops(&self, to: &str) -> u64 {
        let drops = self.at(&format!("/drops_to_{to}"));
        drops.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum()
    }

    /// The drops for one reason in the direction `to` ("carrier" or "tun").
    #[track_caller]
    pub fn drop(&self, to: &str, reason: &str) -> u64 {
        self.number(&format!("/drops_to_{to}/{reason}"))
    }

    #[track_caller]
    fn at(&self, pointer: &str) -> &Value {
        self.0.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {:#}", self.0))
    }
}
