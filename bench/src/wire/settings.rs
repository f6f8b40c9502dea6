//! The settings of one direction of the wire, and their text form: `delay=30ms loss=1% rate=50mbit`.

use std::{fmt, str::FromStr, time::Duration};

use super::unit::{
    Length, Share, parse_duration, parse_length, parse_rate, parse_share, show_duration, show_rate,
};
use crate::way::{Way, Ways};

/// The settings of one direction. By default, frames pass unchanged.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// The rate in bits of frames per second. None means no limit.
    pub(crate) rate: Option<u64>,
    /// The maximum length of the rate limiter's queue, including the frame that is being sent. If a new frame would exceed it,
    /// that frame is dropped.
    pub(crate) queue: Length,
    /// Drops frames that exceed a rate, without queueing them. The policer comes before `rate`.
    pub(crate) police: Option<Police>,
    /// If the queue is longer than this, new ECN-capable packets are marked "congestion experienced" (RFC 3168).
    pub(crate) ecn: Option<Length>,
    /// CoDel's target (RFC 8289). If packets stay longer than this in the queue, CoDel marks ECN-capable packets and drops
    /// others.
    pub(crate) codel: Option<Duration>,
    pub(crate) delay: Duration,
    /// The maximum deviation from `delay`, in both directions. Frames keep their order.
    pub(crate) jitter: Duration,
    pub(crate) loss: Share,
    pub(crate) burst: Option<Burst>,
    pub(crate) reorder: Option<Reorder>,
    pub(crate) duplicate: Share,
    /// The share of frames in which one bit after the Ethernet header is flipped. Checksums detect the change.
    pub(crate) corrupt: Share,
    /// The share of frames in which one bit of a UDP payload is flipped and the checksum is corrected, so that the receiver's
    /// kernel does not detect the change.
    pub(crate) corrupt_udp: Share,
    pub(crate) mtu: Option<Mtu>,
    pub(crate) blackout: Blackout,
}

/// A policer: a token bucket that drops frames if it has too few tokens.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Police {
    /// The rate at which the bucket is filled, in bits per second.
    pub(crate) rate: u64,
    /// The size of the bucket in bytes.
    pub(crate) bucket: u64,
}

/// Loss in bursts by the Gilbert-Elliott model: a Markov chain with a good state, in which no frame is lost, and a bad state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Burst {
    /// The probability of a change from the good to the bad state, for each frame.
    pub(crate) enter: Share,
    /// The probability of a change from the bad to the good state, for each frame. The mean length of a burst is 1 divided by
    /// this probability.
    pub(crate) leave: Share,
    /// The share of frames that are lost in the bad state.
    pub(crate) loss: Share,
}

/// Reordering: some frames are held back, so that later frames overtake them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reorder {
    pub(crate) share: Share,
    pub(crate) by: Duration,
}

/// The limit for the size of IP packets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Mtu {
    pub(crate) bytes: u16,
    /// Whether the sender of a packet that is too large gets an ICMP message (RFC 792, RFC 1191, RFC 4443).
    pub(crate) loud: bool,
}

/// The times in which the link drops all frames.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Blackout {
    Off,
    On,
    /// For this time after the setting was made.
    Once(Duration),
    /// In the first part (`dark`) of each period. The first period starts when the setting is made.
    Every {
        dark: Duration,
        period: Duration,
    },
}

impl Settings {
    /// The default queue length (`txqueuelen`) of Linux.
    const QUEUE: Length = Length::Packets(1_000);

    /// Returns the settings of a new link after a change.
    pub(crate) fn after(change: &Change) -> Self {
        let mut settings = Self::default();
        for &setting in &change.0 {
            settings.apply(setting);
        }
        settings
    }

    /// Returns the bottleneck rate in bits of frames per second. None without a limit.
    pub(crate) fn bottleneck(&self) -> Option<u64> {
        self.rate.into_iter().chain(self.police.map(|police| police.rate)).min()
    }

    pub(super) fn apply(&mut self, setting: Setting) {
        match setting {
            Setting::Clear => *self = Self::default(),
            Setting::Rate(rate) => self.rate = rate,
            Setting::Queue(queue) => self.queue = queue,
            Setting::Ecn(ecn) => self.ecn = ecn,
            Setting::Codel(target) => self.codel = target,
            Setting::Police(police) => self.police = police,
            Setting::Delay(delay) => self.delay = delay,
            Setting::Jitter(jitter) => self.jitter = jitter,
            Setting::Loss(loss) => self.loss = loss,
            Setting::Burst(burst) => self.burst = burst,
            Setting::Reorder(reorder) => self.reorder = reorder,
            Setting::Duplicate(share) => self.duplicate = share,
            Setting::Corrupt(share) => self.corrupt = share,
            Setting::CorruptUdp(share) => self.corrupt_udp = share,
            Setting::Mtu(mtu) => self.mtu = mtu,
            Setting::Blackout(blackout) => self.blackout = blackout,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rate: None,
            queue: Self::QUEUE,
            ecn: None,
            codel: None,
            police: None,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: Share::NONE,
            burst: None,
            reorder: None,
            duplicate: Share::NONE,
            corrupt: Share::NONE,
            corrupt_udp: Share::NONE,
            mtu: None,
            blackout: Blackout::Off,
        }
    }
}

impl fmt::Display for Settings {
    /// Writes the settings that differ from the default, in the syntax of the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        let mut word = |name: &str, value: Option<String>| {
            words.extend(value.map(|value| format!("{name}={value}")));
        };
        let share = |share: Share| (share != Share::NONE).then(|| share.to_string());
        let time = |time: Duration| (!time.is_zero()).then(|| show_duration(time));
        word("rate", self.rate.map(show_rate));
        word("queue", (self.queue != Self::QUEUE).then(|| self.queue.to_string()));
        word("ecn", self.ecn.map(|ecn| ecn.to_string()));
        word("codel", self.codel.map(show_duration));
        let police = |Police { rate, bucket }| format!("{}:{}", show_rate(rate), Length::Bytes(bucket));
        word("police", self.police.map(police));
        word("delay", time(self.delay));
        word("jitter", time(self.jitter));
        word("loss", share(self.loss));
        word("burst", self.burst.map(|Burst { enter, leave, loss }| format!("{enter}:{leave}:{loss}")));
        word("reorder", self.reorder.map(|Reorder { share, by }| format!("{share}:{}", show_duration(by))));
        word("duplicate", share(self.duplicate));
        word("corrupt", share(self.corrupt));
        word("corrupt-udp", share(self.corrupt_udp));
        let loud = |mtu: Mtu| if mtu.loud { ":loud" } else { "" };
        word("mtu", self.mtu.map(|mtu| format!("{}{}", mtu.bytes, loud(mtu))));
        word(
            "blackout",
            match self.blackout {
                Blackout::Off => None,
                Blackout::On => Some("on".to_owned()),
                Blackout::Once(time) => Some(show_duration(time)),
                Blackout::Every { dark, period } => {
                    Some(format!("{}/{}", show_duration(dark), show_duration(period)))
                }
            },
        );
        if words.is_empty() { f.write_str("clear") } else { f.write_str(&words.join(" ")) }
    }
}

/// One setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Setting {
    Clear,
    Rate(Option<u64>),
    Queue(Length),
    Ecn(Option<Length>),
    Codel(Option<Duration>),
    Police(Option<Police>),
    Delay(Duration),
    Jitter(Duration),
    Loss(Share),
    Burst(Option<Burst>),
    Reorder(Option<Reorder>),
    Duplicate(Share),
    Corrupt(Share),
    CorruptUdp(Share),
    Mtu(Option<Mtu>),
    Blackout(Blackout),
}

/// A list of settings to change at the same moment. All other settings stay the same.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Change(pub(super) Vec<Setting>);

impl Change {
    /// Returns the change that resets all settings.
    pub(crate) fn clear() -> Self {
        Self(vec![Setting::Clear])
    }

    /// Returns this change followed by another one.
    pub(crate) fn and(mut self, then: &Self) -> Self {
        self.0.extend(&then.0);
        self
    }

    /// Returns this change once for each direction in `ways`.
    pub(crate) fn each_way(&self, ways: Ways) -> Vec<(Way, Self)> {
        ways.each().iter().map(|&way| (way, self.clone())).collect()
    }
}

impl FromStr for Change {
    type Err = String;

    /// Parses settings, separated by spaces or commas.
    fn from_str(text: &str) -> Result<Self, String> {
        let words = text.split([' ', ',', '\t']).filter(|word| !word.is_empty());
        words.map(Setting::from_str).collect::<Result<_, _>>().map(Self)
    }
}

/// The names and values of all settings.
// Error messages contain the whole grammar, because `--help` does not list the settings.
pub(super) const GRAMMAR: &str = "clear, rate=50mbit|off, queue=100p|64k|50ms, ecn=20p|64k|5ms|off, codel=5ms|off, \
    police=RATE:BUCKET|off, delay=30ms, \
    jitter=5ms, loss=1%, burst=ENTER%:LEAVE%[:LOSS%]|off, reorder=10%:5ms|off, duplicate=1%, corrupt=1%, \
    corrupt-udp=1%, mtu=1300[:loud]|off, blackout=on|off|2s|2s/5s";

impl FromStr for Setting {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        if word == "clear" {
            return Ok(Self::Clear);
        }
        let (name, value) = word
            .split_once('=')
            .ok_or_else(|| format!("\"{word}\" is not a setting; settings are {GRAMMAR}"))?;
        let setting = match name {
            "rate" => unless_off(value, parse_rate).map(Self::Rate),
            "queue" => parse_length(value).map(Self::Queue),
            "ecn" => unless_off(value, parse_length).map(Self::Ecn),
            "codel" => unless_off(value, parse_duration).map(Self::Codel),
            "police" => unless_off(value, parse_police).map(Self::Police),
            "delay" => parse_duration(value).map(Self::Delay),
            "jitter" => parse_duration(value).map(Self::Jitter),
            "loss" => parse_share(value).map(Self::Loss),
            "burst" => unless_off(value, parse_burst).map(Self::Burst),
            "reorder" => unless_off(value, parse_reorder).map(Self::Reorder),
            "duplicate" => parse_share(value).map(Self::Duplicate),
            "corrupt" => parse_share(value).map(Self::Corrupt),
            "corrupt-udp" => parse_share(value).map(Self::CorruptUdp),
            "mtu" => unless_off(value, parse_mtu).map(Self::Mtu),
            "blackout" => parse_blackout(value).map(Self::Blackout),
            _ => return Err(format!("there is no setting \"{name}\"; settings are {GRAMMAR}")),
        };
        setting.map_err(|error| format!("{name}: {error}"))
    }
}

fn unless_off<T>(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>, String> {
    if text == "off" { Ok(None) } else { parse(text).map(Some) }
}

fn parse_police(text: &str) -> Result<Police, String> {
    let wrong = || format!("\"{text}\" is not RATE:BUCKET, as in 100mbit:250k");
    let (rate, bucket) = text.split_once(':').ok_or_else(wrong)?;
    // The size of a bucket must be in bytes.
    match parse_length(bucket)? {
        Length::Bytes(bucket) => Ok(Police { rate: parse_rate(rate)?, bucket }),
        Length::Packets(_) | Length::Time(_) => Err(wrong()),
    }
}

fn parse_burst(text: &str) -> Result<Burst, String> {
    let (enter, rest) =
        text.split_once(':').ok_or_else(|| format!("\"{text}\" is not ENTER%:LEAVE%, as in 1%:30%"))?;
    // Without LOSS, all frames in the bad state are lost, as in Gilbert's model.
    let (leave, loss) = rest.split_once(':').unwrap_or((rest, "100%"));
    Ok(Burst { enter: parse_share(enter)?, leave: parse_share(leave)?, loss: parse_share(loss)? })
}

fn parse_reorder(text: &str) -> Result<Reorder, String> {
    let (share, by) =
        text.split_once(':').ok_or_else(|| format!("\"{text}\" is not SHARE%:TIME, as in 10%:5ms"))?;
    Ok(Reorder { share: parse_share(share)?, by: parse_duration(by)? })
}

fn parse_mtu(text: &str) -> Result<Mtu, String> {
    let (bytes, loud) = match text.split_once(':') {
        None => (text, false),
        Some((bytes, "loud")) => (bytes, true),
        Some((_, other)) => return Err(format!("\"{other}\" is not \"loud\", as in 1300:loud")),
    };
    // 68 is the minimum MTU of IPv4 (RFC 791). The minimum of IPv6 is 1280.
    match bytes.parse() {
        Ok(bytes) if bytes >= 68 => Ok(Mtu { bytes, loud }),
        _ => Err(format!("\"{bytes}\" is not an MTU from 68 to 65535 bytes")),
    }
}

fn parse_blackout(text: &str) -> Result<Blackout, String> {
    match (text, text.split_once('/')) {
        ("off", _) => Ok(Blackout::Off),
        ("on", _) => Ok(Blackout::On),
        (_, None) => parse_duration(text).map(Blackout::Once),
        (_, Some((dark, period))) => {
            let (dark, period) = (parse_duration(dark)?, parse_duration(period)?);
            // A period of 0 is refused, because the link divides by the period.
            if period.is_zero() {
                return Err("the period is zero; write DARK/PERIOD, as in 2s/5s".to_owned());
            }
            Ok(Blackout::Every { dark, period })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Settings {
        Settings::after(&text.parse().unwrap())
    }

    #[test]
    fn settings_are_written_as_they_are_read() {
        let text = "rate=50mbit queue=64k ecn=5ms codel=5ms police=40mbit:64k delay=30ms jitter=0.5ms loss=1% \
                    burst=0.1%:25%:100% reorder=10%:5ms duplicate=0.5% corrupt=2% corrupt-udp=3% mtu=1300:loud blackout=2s/5s";
        assert_eq!(settings(text).to_string(), text);
        assert_eq!(settings("").to_string(), "clear");
        assert_eq!(settings("delay=30ms,loss=1% clear").to_string(), "clear");
        assert_eq!(settings("mtu=1300 blackout=on").to_string(), "mtu=1300 blackout=on");
    }

    #[test]
    fn what_a_change_does_not_name_stays() {
        let mut settings = settings("delay=30ms loss=1% rate=1gbit");
        for setting in "loss=0 rate=off".parse::<Change>().unwrap().0 {
            settings.apply(setting);
        }
        assert_eq!(settings.to_string(), "delay=30ms");
    }

    #[test]
    fn mistakes_are_told_with_what_is_right() {
        for (text, expected) in [
            ("latency=3ms", "there is no setting \"latency\""),
            ("delay", "\"delay\" is not a setting"),
            ("delay=3", "delay: \"3\" is not a time"),
            ("loss=101%", "loss: \"101%\" is not a share"),
            ("rate=fast", "rate: \"fast\" is not a rate"),
            ("queue=9", "queue: \"9\" is not a length"),
            ("police=1mbit", "police: \"1mbit\" is not RATE:BUCKET"),
            ("police=1mbit:5p", "police: \"1mbit:5p\" is not RATE:BUCKET"),
            ("burst=1%", "burst: \"1%\" is not ENTER%:LEAVE%"),
            ("reorder=1%", "reorder: \"1%\" is not SHARE%:TIME"),
            ("mtu=67", "mtu: \"67\" is not an MTU"),
            ("mtu=1300:quiet", "mtu: \"quiet\" is not \"loud\""),
            ("blackout=1s/0s", "blackout: the period is zero"),
        ] {
            let error = text.parse::<Change>().unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
