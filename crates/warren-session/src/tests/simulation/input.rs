//! Turns arbitrary bytes into a sequence of events, for a fuzz target. Missing bytes read as zero, so every input is valid.

use super::operator::{Change, Elsewhere};
use super::store::Mood;
use super::trouble::{Step, Which};
use super::world::{Room, World};

/// Most steps read from one input.
const MAX_STEPS: usize = 400;

/// Runs the steps that the bytes encode, then checks that every client is connected again.
///
/// # Panics
/// If a checked property is violated.
pub fn run_bytes(data: &[u8]) {
    let mut input = Input(data);
    let room = if input.byte() % 2 == 0 { Room::Enough } else { Room::Tight };
    let mut world = World::new(u64::from(input.byte()), room);
    for _ in 0..MAX_STEPS {
        if input.0.is_empty() {
            break;
        }
        world.take(&input.step());
    }
    world.settle();
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    /// Frequent steps have more byte values, like the weights of random seeds.
    fn step(&mut self) -> Step {
        match self.byte() {
            0..56 => Step::Deliver(self.which()),
            56..64 => Step::SetClient(self.which(), Change::NextKey(self.which()), self.saved()),
            64..90 => Step::DeliverMany(usize::from(self.byte() % 40) + 1),
            90..96 => Step::ChangeKey(self.which(), self.which(), self.flag()),
            96..108 => Step::CutBothSides(self.which()),
            108..112 => Step::Knock(self.which(), self.flag()),
            112..120 => Step::CutClientSide(self.which()),
            120..128 => Step::CutExitSide(self.which()),
            128..140 => Step::Silence(self.which()),
            140..160 => Step::Wait(u64::from(self.byte()) * 2 + 1),
            160..164 => Step::SetClient(self.which(), self.change(), self.saved()),
            164..176 => Step::Wait(400 + u64::from(self.byte()) * 350),
            176..184 => Step::WaitForTimeout,
            184..188 => Step::CrashExit,
            188..192 => Step::ShutExitDown,
            192..196 => Step::StartExit,
            196..200 => Step::Announce,
            200..202 => Step::Invite(self.which(), u64::from(self.byte()) * 60 + 1),
            202..204 => Step::Enrol(self.which(), self.which()),
            204..212 => Step::RestartClient(self.which(), self.flag()),
            212..216 => Step::RemoveClient(self.which()),
            216..220 => Step::SetDisabled(self.which(), self.flag()),
            220..226 => Step::AddClient(self.which()),
            226..228 => Step::SetClock(self.seconds()),
            228..234 => Step::SayToExit(self.which(), self.nonsense()),
            234..240 => Step::SayToClient(self.which(), self.nonsense()),
            240..246 => Step::ForgeAttach(u64::from(self.byte()), u32::from(self.byte() % 3)),
            246..252 => Step::StealToken(self.which(), self.which(), u32::from(self.byte() % 3)),
            252 if self.flag() => Step::MovedAway(self.which(), self.flag()),
            252 => Step::Stranger(self.flag()),
            253 if self.flag() => Step::Relink,
            253 => Step::StoreMood([Mood::Prompt, Mood::Slow, Mood::Down][usize::from(self.byte() % 3)]),
            254 => Step::StoreWorks(usize::from(self.byte() % 4) + 1),
            255 => Step::Elsewhere(self.which(), self.elsewhere()),
        }
    }

    /// A message that does not decode. Arbitrary valid messages would model a different peer, not a broken wire.
    fn nonsense(&mut self) -> Vec<u8> {
        let length = self.byte() % 32;
        // Field 0 with wire type 7: neither exists in Protocol Buffers.
        let mut message = vec![0, length + 1, 0x07];
        message.extend((0..length).map(|_| self.byte()));
        message
    }

    fn change(&mut self) -> Change {
        match self.byte() % 4 {
            0 | 1 => Change::Prefixes(self.which()),
            2 => Change::Ipv4(self.byte()),
            _ => Change::RateLimit(self.which()),
        }
    }

    fn elsewhere(&mut self) -> Elsewhere {
        let byte = self.byte();
        match byte % 6 {
            _ if byte >= 0xe0 => Elsewhere::Lease,
            0 => Elsewhere::Add,
            1 => Elsewhere::Remove,
            2 => Elsewhere::Disable,
            3 => Elsewhere::Enable,
            4 => Elsewhere::Enrol,
            _ => Elsewhere::TakeAddress,
        }
    }

    /// Whether a change can be saved. One change in eight cannot.
    fn saved(&mut self) -> bool {
        self.byte() % 8 != 7
    }

    /// A number of seconds, hours, days or years, forward or back.
    fn seconds(&mut self) -> i64 {
        let unit = [1, 3_600, 86_400, 31_536_000][usize::from(self.byte() % 4)];
        let seconds = unit * i64::from(self.byte());
        if self.flag() { -seconds } else { seconds }
    }

    fn which(&mut self) -> Which {
        Which(u32::from(self.byte()))
    }

    fn flag(&mut self) -> bool {
        self.byte() % 2 == 1
    }

    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }
}
