//! Events that happen to the client and its exits.

use warren_simulation::Random;

use super::world::World;

pub(super) enum Trouble {
    Drain(usize, bool),
    Refuse(usize, bool),
    Path(usize, bool),
    Carry(usize, bool),
    Crash(usize),
    Start(usize),
    /// All connections of the session in use are lost at once, but its exit still has the session.
    LoseSession,
    LoseOne(u64),
    /// A move begins and the path to the new exit dies. The session in use is lost before the client notices this.
    LoseWhileBuilding,
    Store(bool),
    Device(bool),
    Flows(usize),
    Improve,
}

impl Trouble {
    pub(super) fn draw(random: &mut Random) -> Self {
        let exit = usize::from(random.once_in(2));
        match random.below(24) {
            0..=4 => Self::Drain(exit, !random.once_in(3)),
            5..=7 => Self::Improve,
            8 => Self::Refuse(exit, random.once_in(2)),
            9..=11 => Self::Path(exit, random.once_in(2)),
            12..=14 => Self::Carry(exit, random.once_in(2)),
            15 => Self::Crash(exit),
            16 => Self::Start(exit),
            17 => Self::LoseSession,
            18 => Self::LoseWhileBuilding,
            19 => Self::LoseOne(random.draw()),
            20..=21 => Self::Store(random.once_in(2)),
            22 => Self::Device(!random.once_in(3)),
            _ => Self::Flows(usize::try_from(random.below(3)).unwrap()),
        }
    }

    pub(super) fn make(self, world: &mut World) {
        match self {
            Self::Drain(exit, on) => world.drain(exit, on),
            Self::Refuse(exit, refuses) => world.sites[exit].refuses = refuses,
            Self::Path(exit, is_dead) => world.set_path(exit, is_dead),
            Self::Carry(exit, carries) => world.sites[exit].carries = carries,
            Self::Crash(exit) => world.crash(exit),
            Self::Start(exit) => world.start(exit),
            Self::LoseWhileBuilding => {
                world.improve();
                world.set_path(1 - world.client.in_use.exit, true);
                world.wait(100);
                Self::LoseSession.make(world);
            }
            Self::LoseSession => {
                let number = world.client.in_use.number;
                let is_its = |owner: Option<(u64, u32)>| owner.is_some_and(|(session, _)| session == number);
                let wires = world.wires.iter().filter(|(_, wire)| is_its(wire.owner)).map(|(wire, _)| *wire);
                wires.collect::<Vec<_>>().into_iter().for_each(|wire| world.cut(wire));
            }
            Self::LoseOne(which) => {
                let wires: Vec<_> = world.wires.keys().copied().collect();
                let which = usize::try_from(which % wires.len().max(1) as u64).unwrap();
                wires.get(which).into_iter().for_each(|wire| world.cut(*wire));
            }
            Self::Store(is_away) => world.store.is_away = is_away,
            Self::Device(is_there) => world.client.has_device = is_there,
            Self::Flows(flows) => world.client.flows = flows,
            Self::Improve => world.improve(),
        }
        world.act();
    }
}
