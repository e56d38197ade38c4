//! The cores that the ranks of a host may use, which decide whether a rank may spin while it waits.
//!
//! A rank that spins where ranks outnumber cores keeps the rank that it waits for from its core. What counts are all
//! ranks of the host, not only those that a rank exchanges data with, and the cores that these ranks may use: their
//! affinity masks together, and the CPU quota of their cgroups.

use super::shared::PLACE;

/// Processors that a mask covers, as glibc's `cpu_set_t`.
const PROCESSORS: usize = 1024;
const MASK: usize = PROCESSORS / 64;

/// Where a rank is, and the cores that it may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RankCores {
    /// Boot and PID namespace; zeros where they are unknown.
    place: [u8; PLACE],
    /// A bit for each processor that its affinity allows.
    mask: [u64; MASK],
    /// Most cores at a time, by affinity and cgroup quota (v1 and v2), rounded down but at least 1.
    most: u32,
}

impl RankCores {
    /// Bytes of [`RankCores::to_bytes`].
    pub(super) const BYTES: usize = PLACE + 8 * MASK + 4;

    /// Of the calling thread; without any core where the kernel does not report them.
    pub(super) fn of_this_thread(place: Option<[u8; PLACE]>) -> RankCores {
        let mut mask = [0; MASK];
        // SAFETY: the kernel writes at most the given number of bytes, and every bit pattern is a value.
        let read = unsafe { libc::sched_getaffinity(0, size_of_val(&mask), mask.as_mut_ptr().cast()) };
        if read != 0 {
            mask = [0; MASK];
        }
        let most = std::thread::available_parallelism().map_or(0, |cores| cores.get() as u32);
        RankCores { place: place.unwrap_or([0; PLACE]), mask, most }
    }

    pub(super) fn to_bytes(&self) -> [u8; RankCores::BYTES] {
        let mut bytes = [0; RankCores::BYTES];
        let (place, rest) = bytes.split_at_mut(PLACE);
        place.copy_from_slice(&self.place);
        let (mask, most) = rest.split_at_mut(8 * MASK);
        for (to, word) in mask.as_chunks_mut::<8>().0.iter_mut().zip(self.mask) {
            *to = word.to_le_bytes();
        }
        most.copy_from_slice(&self.most.to_le_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; RankCores::BYTES]) -> RankCores {
        let mut cores = RankCores { place: [0; PLACE], mask: [0; MASK], most: 0 };
        let (place, rest) = bytes.split_at(PLACE);
        cores.place.copy_from_slice(place);
        let (mask, most) = rest.split_at(8 * MASK);
        for (to, word) in cores.mask.iter_mut().zip(mask.as_chunks::<8>().0) {
            *to = u64::from_le_bytes(*word);
        }
        cores.most = most.first_chunk().map_or(0, |most| u32::from_le_bytes(*most));
        cores
    }

    fn allowed(&self) -> u32 {
        self.mask.iter().map(|word| word.count_ones()).sum()
    }
}

/// Whether the host of this rank has at least one core for each of its ranks. All ranks of a host get the same
/// answer.
pub(super) fn have_cores(ranks: &[RankCores], rank: usize) -> bool {
    let Some(own) = ranks.get(rank) else { return false };
    let (mut count, mut together, mut quota) = (0, [0; MASK], u32::MAX);
    for other in ranks.iter().filter(|other| other.place == own.place) {
        count += 1;
        together.iter_mut().zip(other.mask).for_each(|(all, word)| *all |= word);
        // Fewer than the affinity allows: a quota, which ranks of a host usually share.
        if other.most < other.allowed() {
            quota = quota.min(other.most);
        }
    }
    let cores = together.iter().map(|word: &u64| word.count_ones()).sum::<u32>().min(quota);
    cores >= count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(place: u8, mask: u64, most: u32) -> RankCores {
        let mut words = [0; MASK];
        words[0] = mask;
        RankCores { place: [place; PLACE], mask: words, most }
    }

    #[test]
    fn spinning_needs_a_core_for_each_rank_of_the_host() {
        let on_four = |ranks: usize| vec![rank(1, 0b1111, 4); ranks];
        assert!(have_cores(&on_four(4), 0));
        // Rank 0 of eight has only three partners.
        assert!(!have_cores(&on_four(8), 0));
        let mut two_hosts = on_four(4);
        two_hosts.extend(vec![rank(2, 0b11, 2); 3]);
        assert!(have_cores(&two_hosts, 3) && !have_cores(&two_hosts, 4));
    }

    #[test]
    fn masks_count_together_and_quotas_limit_them() {
        let pinned = [rank(1, 0b01, 1), rank(1, 0b10, 1)];
        assert!(have_cores(&pinned, 0));
        let same_core = [rank(1, 0b10, 1), rank(1, 0b10, 1)];
        assert!(!have_cores(&same_core, 1));
        let quota = [rank(1, 0b1111, 2), rank(1, 0b1111, 2), rank(1, 0b1111, 2)];
        assert!(!have_cores(&quota, 0) && have_cores(&quota[..2], 0));
        let unknown = [rank(0, 0, 0)];
        assert!(!have_cores(&unknown, 0) && !have_cores(&[], 0));
    }

    #[test]
    fn cores_of_a_pinned_thread_are_its_affinity() {
        let found = std::thread::spawn(|| {
            let all = RankCores::of_this_thread(None);
            let word = all.mask.iter().position(|word| *word != 0).unwrap();
            let mut only = [0_u64; MASK];
            only[word] = 1 << all.mask[word].trailing_zeros();
            // SAFETY: limits this thread to a processor that it has, by a mask of the given size.
            let set = unsafe { libc::sched_setaffinity(0, size_of_val(&only), only.as_ptr().cast()) };
            assert_eq!(set, 0);
            (RankCores::of_this_thread(None), only)
        });
        let (pinned, only) = found.join().unwrap();
        assert_eq!((pinned.mask, pinned.most), (only, 1));
        assert_eq!(RankCores::from_bytes(&pinned.to_bytes()), pinned);
    }
}
