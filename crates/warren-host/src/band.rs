//! Priorities of Warren's policy rules. They are organised in bands, of which all tunnels of the host use the same one.

/// A range of rule priorities with room for several tunnels.
///
/// The first priorities of a band are for rules about packets that come out of a tunnel, one for each tunnel. Next come all
/// tunnels' rules for specific routes, and then all tunnels' rules for default routes. The kernel tries lower priorities first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    first: u32,
    /// The number of tunnels that fit into the band.
    width: u32,
}

impl Band {
    /// The band that is used unless another program's rule takes precedence over it. It takes precedence over the rule for the
    /// `main` table, which has priority 32766.
    pub const USUAL: Self = Self::new(5505, 256);

    /// Every band, the usual one first. The kernel tries each band before its predecessors in this order.
    pub fn all() -> impl Iterator<Item = Self> {
        BANDS.into_iter()
    }

    /// The rule priorities of the tunnel in `slot`: for packets from the tunnel, for specific routes and for default
    /// routes.
    pub fn priorities(self, slot: u8) -> [u32; 3] {
        [0, 1, 2].map(|kind| self.first + kind * self.width + u32::from(slot))
    }

    /// Whether the band has priorities for the tunnel in `slot`.
    pub(crate) fn has_room_for(self, slot: u8) -> bool {
        u32::from(slot) < self.width
    }

    /// The band that a priority is in.
    pub(crate) fn of(priority: u32) -> Option<Self> {
        Self::all().find(|band| (band.first..=band.last()).contains(&priority))
    }

    pub(crate) fn first(self) -> u32 {
        self.first
    }

    pub(crate) fn last(self) -> u32 {
        self.first + 3 * self.width - 1
    }

    const fn new(first: u32, width: u32) -> Self {
        Self { first, width }
    }
}

/// There are gaps between the bands because the kernel puts a rule that is added without a priority right in front of all others.
/// The lowest bands have room for few tunnels, but take precedence over almost all other rules.
const BANDS: [Band; 12] = [
    Band::USUAL,
    Band::new(4736, 256),
    Band::new(3967, 256),
    Band::new(3198, 256),
    Band::new(2429, 256),
    Band::new(1660, 256),
    Band::new(891, 256),
    Band::new(122, 256),
    Band::new(36, 28),
    Band::new(12, 8),
    Band::new(4, 2),
    // Priority 0 is that of the rule for the local table, so the bands begin at 1.
    Band::new(1, 1),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specific_routes_of_any_tunnel_are_asked_before_default_routes_of_any() {
        for band in Band::all() {
            let last_slot = u8::try_from(band.width - 1).unwrap();
            let [last_arrived, last_specific, last_default] = band.priorities(last_slot);
            let [first_arrived, first_specific, first_default] = band.priorities(0);

            assert!(last_arrived < first_specific && last_specific < first_default, "{band:?}");
            assert_eq!((band.first(), band.last()), (first_arrived, last_default));
            assert!(band.has_room_for(last_slot) && (band.width == 256 || !band.has_room_for(last_slot + 1)));
        }
        assert!(Band::USUAL.last() < 32_766);
    }

    #[test]
    fn each_band_stands_in_front_of_those_before_it_and_none_at_the_local_table_s_place() {
        let bands: Vec<Band> = Band::all().collect();
        assert!(bands.windows(2).all(|pair| pair[1].last() < pair[0].first()), "{bands:?}");
        assert!(bands.iter().all(|band| band.first() > 0));
        assert_eq!(Band::of(5505), Some(Band::USUAL));
        assert_eq!((Band::of(5504), Band::of(5503).map(Band::first)), (None, Some(4736)));
        assert_eq!((Band::of(0), Band::of(32_766)), (None, None));
    }
}
