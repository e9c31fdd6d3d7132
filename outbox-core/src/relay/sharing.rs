//! How lanes are shared among workers.

use crate::Leases;

/// How many lanes a worker should own: equal shares, the remainder to the first in rank.
pub(crate) fn fair_share(lanes: u16, leases: &Leases) -> u16 {
    let workers = leases.workers.max(1);
    lanes / workers + u16::from(leases.rank < lanes % workers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_add_up_to_all_lanes_and_differ_by_one_at_most(lanes in 1u16..300, workers in 1u16..50) {
            let share = |rank| fair_share(lanes, &Leases::new(Vec::new(), workers, rank));
            let shares: Vec<u16> = (0..workers).map(share).collect();
            prop_assert_eq!(shares.iter().sum::<u16>(), lanes);
            prop_assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
        }
    }

    #[test]
    fn a_worker_that_knows_of_nobody_takes_all() {
        assert_eq!(fair_share(16, &Leases::default()), 16);
    }
}
