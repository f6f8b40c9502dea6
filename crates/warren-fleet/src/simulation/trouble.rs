//! The faults that occur, and the actions of operators.

use std::time::Duration;

use warren_simulation::Random;

use super::world::{EXITS, World};

#[derive(Clone, Copy, Debug)]
pub(super) enum Trouble {
    Invite,
    Add,
    Remove,
    /// The path to the store is cut for one exit, or for all exits.
    Cut,
    StoreDown,
    Slow,
    RestartLink,
    RestartExit,
    Compact,
    BackUp,
    /// The store is restored from the latest backup, and recovered after a while.
    Restore,
    /// An operator removes an exit.
    RemoveExit,
    /// An exit that was removed joins again.
    JoinAgain,
    /// A client moves to another exit.
    Move,
}

impl Trouble {
    /// `are_exits_removed`: whether operators also remove exits.
    pub(super) fn draw(random: &mut Random, are_exits_removed: bool) -> Self {
        match random.below(if are_exits_removed { 44 } else { 39 }) {
            0..=7 => Self::Invite,
            8..=10 => Self::Add,
            11..=15 => Self::Remove,
            16..=19 => Self::Cut,
            20 => Self::StoreDown,
            21..=23 => Self::Slow,
            24..=26 => Self::RestartLink,
            27..=28 => Self::RestartExit,
            29..=30 => Self::Compact,
            31..=32 => Self::BackUp,
            33..=34 => Self::Restore,
            35..=38 => Self::Move,
            39..=41 => Self::RemoveExit,
            _ => Self::JoinAgain,
        }
    }

    pub(super) fn make(self, world: &mut World, random: &mut Random) {
        let exit = usize::try_from(random.below(EXITS as u64)).unwrap();
        let now = world.now;
        let soon = |random: &mut Random, most| now + Duration::from_millis(random.below(most));
        match self {
            Self::Invite => world.invite(exit, random),
            Self::Add => world.add(exit, random),
            Self::Remove => world.remove(exit, random),
            Self::Cut => {
                let until = soon(random, 16_000);
                world.cut(exit, until, random);
            }
            Self::StoreDown => {
                let until = soon(random, 8_000);
                (0..EXITS).for_each(|exit| world.cut(exit, until, random));
            }
            Self::Slow => {
                let until = soon(random, 6_000);
                let site = &mut world.sites[exit];
                (site.slow_until, site.used_since) = (Some(until), None);
            }
            Self::RestartLink => world.restart_link(exit),
            Self::RestartExit => world.restart_exit(exit),
            Self::Compact => world.store.compact(),
            Self::BackUp => world.back_up(),
            Self::Restore => world.restore(random),
            Self::RemoveExit => world.remove_exit(exit, random),
            Self::JoinAgain => world.join_again(),
            Self::Move => world.move_a_client(random),
        }
    }
}
